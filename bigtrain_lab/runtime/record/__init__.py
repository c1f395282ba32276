"""Records: the log of a rank, what it returned, and the directory of a run."""
