"""Erase drives by one method each, and prove the result."""
