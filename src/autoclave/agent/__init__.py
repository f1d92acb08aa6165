"""Serve one host: discovery, cleaning, recovery, and instances."""
