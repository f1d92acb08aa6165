"""Compose services from their parts, and start and stop them."""
