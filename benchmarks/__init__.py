"""Measurements, each of which prints a table and writes JSON. They are not timed tests."""
