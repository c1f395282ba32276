"""Failures: who failed, who waits for whom, and faults on purpose."""
