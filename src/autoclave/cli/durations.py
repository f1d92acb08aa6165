"""Durations as people say them."""


def in_words(seconds: float) -> str:
    """Such as ``45 s``, ``12 min`` or ``3 h 20 min``: no finer than an estimate can be."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
