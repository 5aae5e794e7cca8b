"""Copies of runs in object stores and other file systems, from which a run continues after its machine is lost."""
