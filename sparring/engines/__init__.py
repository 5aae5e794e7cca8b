"""Who samples: the policy in process, a remote endpoint, or a script."""
