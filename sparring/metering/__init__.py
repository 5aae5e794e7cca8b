"""Requests to endpoints: their number, their tokens and their cost."""
