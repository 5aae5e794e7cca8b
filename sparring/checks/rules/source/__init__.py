"""Mistakes that are visible in the user's own source code, without running it."""
