"""The processor time of the controlling process against the number of concurrent sessions."""
