"""Measures how much training time failures cost."""
