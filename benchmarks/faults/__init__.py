"""Measures how much training time is lost to failures."""
