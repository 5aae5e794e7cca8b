"""Generated families of environments."""
