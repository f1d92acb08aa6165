"""Provide the operator's commands."""
