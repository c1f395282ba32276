"""Speed, side by side with a peer in one run. Nothing here is a test: this machine's timer is
disturbed by other work."""
