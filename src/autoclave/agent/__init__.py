"""The service on each host: discovery, cleaning, recovery."""
