"""Orders of events as data, their simulator, and what a trace tells of them. Pure: no torch."""
