"""Fixtures of the integration tests."""

from machine import machine

__all__ = ["machine"]
