"""Code that runs a check: its processes, deadlines and time budget, the gate before a training, and the report."""
