"""HTTP servers: sockets, TLS, limits on what strangers may send, and protection from web pages."""
