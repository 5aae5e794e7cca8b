"""Runs with a planted fault, and healthy runs that look similar, to measure whether the diagnosis is correct."""
