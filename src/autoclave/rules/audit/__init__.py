"""Derive the findings of an audit from facts. This package performs no I/O."""
