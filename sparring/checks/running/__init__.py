"""Code that runs a check: its processes, deadlines and time budget, the gate before training, and the report."""
