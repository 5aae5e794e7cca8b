"""The two sides of a comparison, each of which runs in a separate process."""
