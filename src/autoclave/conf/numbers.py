"""Bound the numbers that are waited for or counted to."""

import math
from typing import Any

from oslo_config import cfg, types

DAY = 86400
"""Set the longest interval and timeout, in seconds."""


class _Finite(types.Float):  # type: ignore[misc]  # oslo.config comes without types
    def __call__(self, value: Any) -> float:
        number = float(super().__call__(value))
        if not math.isfinite(number):  # nan passes every limit
            raise ValueError(f"{value} is not a finite number")
        return number


class FiniteFloatOpt(cfg.Opt):  # type: ignore[misc]
    """Accept a number from *min* to *max*, neither infinite nor nan."""

    def __init__(self, name: str, *, min: float, max: float = DAY, **arguments: Any) -> None:  # noqa: A002
        super().__init__(name, type=_Finite(min, max), **arguments)
