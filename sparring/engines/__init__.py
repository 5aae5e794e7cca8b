"""Engines: they sample from the policy in this process, a remote endpoint, or a script."""
