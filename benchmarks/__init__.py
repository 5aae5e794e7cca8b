"""Measurements that print a table and write JSON. They are not timed tests."""
