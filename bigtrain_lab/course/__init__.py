"""The course: assignments made of exercises, handed out by nbgrader and graded from their text."""
