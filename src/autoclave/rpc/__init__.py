"""Messages between services: one port, and the two transports behind it."""
