"""Seconds per training step against episodes, turns and context."""
