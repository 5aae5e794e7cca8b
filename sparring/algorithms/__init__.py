"""Advantages and losses: pure functions, each citing its equation."""
