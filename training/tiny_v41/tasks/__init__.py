"""Exercises, for training and for scores."""
