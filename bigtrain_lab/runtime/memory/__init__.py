"""Memory: which bytes a rank holds, by kind, name and place, and its limit."""
