"""Moments where Nova writes them without a zone: those of its former extensions."""

from datetime import datetime


def novas_moment(when: datetime | None) -> str | None:
    """*when*, in UTC, such as ``2026-11-28T09:00:18.000000``: clients that take this take nothing else."""
    return None if when is None else when.isoformat(timespec="microseconds")
