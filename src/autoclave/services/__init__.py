"""Wiring only: which parts make which service, and how they start and stop."""
