"""Slips that stand in the user's own source code, read without running it."""
