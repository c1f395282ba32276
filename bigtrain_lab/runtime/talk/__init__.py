"""Messages: groups, lanes, clocks, and the executor of plans."""
