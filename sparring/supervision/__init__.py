"""Splits `sparring train` into two processes: one trains, and a small one watches it and restarts it after a crash."""
