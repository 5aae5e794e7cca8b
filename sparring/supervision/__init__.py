"""Splits `sparring train` into two processes. One trains; the other is small, watches the first and restarts it after a
crash."""
