"""Graders: an answer is right when it behaves as a right one, and is told which known mistake it
behaves like when it does not (likeness.py). An exercise is a folder in topics/."""

from .likeness import Marked, Scene, Step, Topic, Wrong, assert_right, check, hint, marks

__all__ = ["Marked", "Scene", "Step", "Topic", "Wrong", "assert_right", "check", "hint", "marks"]
