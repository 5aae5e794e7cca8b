"""Services for every long-running process: event loop, cancellation, signals, fault injection, logs, redaction and
plugins."""
