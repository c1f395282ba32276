"""Processes: how ranks are launched, served, watched and ended."""
