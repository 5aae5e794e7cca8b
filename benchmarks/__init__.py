"""Side-by-side measurements that print a table and write JSON; never timed tests."""
