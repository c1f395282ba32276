"""What refuses a user's mistakes, apart from the lectures: one file a technique."""
