"""Serving of trained policies, recording of requests to endpoints, and export of policies."""
