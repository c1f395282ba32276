"""What refuses a user's mistakes, apart from the lectures: one file for each technique that needs it."""
