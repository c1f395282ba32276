"""Recompute: plans as data, the cheapest of them, and all of them side by side."""
