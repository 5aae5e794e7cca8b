"""Requests to endpoints, their tokens, and their cost."""
