"""Runs with a planted fault, and healthy runs that look similar, which measure whether the diagnosis is right."""
