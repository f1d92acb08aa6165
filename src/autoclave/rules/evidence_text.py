"""The evidence of an event as the database keeps it: JSON that fits into a column."""

import json
from collections.abc import Mapping
from typing import Any

MOST_BYTES = 60_000
"""Bytes of JSON: MariaDB's TEXT holds 65,535."""
LEFT_OUT = "left_out"
"""The key that says what was left out: of a list, how many entries; of another value, its bytes."""


def evidence_text(evidence: Mapping[str, Any]) -> str:
    """Return *evidence* as JSON of at most :data:`MOST_BYTES`.

    The largest value is shortened first: a list loses its last entries, any other value goes. So the short facts stay,
    such as the action and what was verified.
    """
    kept = dict(evidence)
    left_out: dict[str, Any] = {}
    while len(text := _json({**kept, LEFT_OUT: left_out} if left_out else kept)) > MOST_BYTES:
        largest = max(kept, key=lambda name: len(_json(kept[name])))
        value = kept[largest]
        if isinstance(value, list) and len(value) > 1:
            kept[largest] = value[: max(1, len(value) * MOST_BYTES // len(text) - 1)]
            entries = left_out.get(largest, {"entries": 0})["entries"] + len(value) - len(kept[largest])
            left_out[largest] = {"entries": entries}
        else:
            left_out[largest] = {**left_out.get(largest, {}), "bytes": len(_json(kept.pop(largest)))}
    return text


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
