"""How fast drives of this host were overwritten: what an estimate for the next one rests on."""

import json
import os
from pathlib import Path

from oslo_log import log as logging

LOG = logging.getLogger(__name__)

FILE_NAME = "erase-rates.json"


class EraseRates:
    """Bytes per second by drive model and cleanup action, remembered in one file of the agent's.

    What is remembered is only for people to read. A file that cannot be read or written is a warning, and is
    never a reason not to erase.

    :param directory: the agent's data directory.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME

    def of(self, model: str, action: str) -> float | None:
        """What drives of *model* did last; None: none was overwritten here yet."""
        rate = self._read().get(model, {}).get(action)
        return float(rate) if isinstance(rate, int | float) and rate > 0 else None

    def remember(self, model: str, action: str, size: int, seconds: float) -> None:
        """A drive of *model* had *size* bytes overwritten in *seconds*."""
        if seconds <= 0 or not size:
            return
        rates = self._read()
        rates.setdefault(model, {})[action] = size / seconds
        fresh = self._path.with_suffix(f".{os.getpid()}")
        try:
            fresh.write_text(json.dumps(rates, indent=1, sort_keys=True), encoding="utf-8")
            fresh.replace(self._path)
        except OSError as error:
            LOG.warning("How long the erase took cannot be remembered in %s: %s", self._path, error.strerror)

    def _read(self) -> dict[str, dict[str, float]]:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            LOG.warning("How long earlier erases took cannot be read from %s: %s", self._path, error)
            return {}
        sound = isinstance(found, dict) and all(isinstance(rates, dict) for rates in found.values())
        return found if sound else {}
