"""Advantages and losses as pure functions. Each function cites its equation."""
