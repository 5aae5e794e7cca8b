"""Services that every long-running process needs: event loop, cancellation, signals, faults, logs, redaction, plugins."""
