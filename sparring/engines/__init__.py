"""Engines, which sample answers from a policy in this process, a remote endpoint, or a script."""
