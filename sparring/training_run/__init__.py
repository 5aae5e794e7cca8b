"""The training of a run: its start, the actions between its steps, its end, and its control."""
