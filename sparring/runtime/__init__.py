"""Services for every long-running process: event loop, cancellation, signals, faults, logs, redaction and plugins."""
