"""Guests: what the hypervisor is told, and who runs them."""
