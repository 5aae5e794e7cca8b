"""The two sides of a comparison, each run in a process of its own."""
