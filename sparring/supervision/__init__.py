"""`sparring train` as two processes: one that trains, and a small one that watches it and starts it again when it crashes."""
