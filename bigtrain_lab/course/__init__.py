"""The course: assignments out of exercises, handed out and collected by nbgrader."""
