"""Guests: what the hypervisor is told."""
