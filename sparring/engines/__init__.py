"""Engines, which sample from the policy in this process, from a remote endpoint, or from a script."""
