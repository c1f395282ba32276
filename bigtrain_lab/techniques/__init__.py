"""The techniques, one lecture a file. Each works under a process group of your own, with nothing of the lab around it."""
