"""Ranks that torchrun started: how they meet, watch each other and agree on time."""
