"""Serve trained policies, record requests to endpoints, and export policies."""
