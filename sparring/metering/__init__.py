"""Counts of requests to endpoints, of their tokens, and of their cost."""
