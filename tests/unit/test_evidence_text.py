"""Evidence of any size fits into a column, and says what is not in it."""

import json
from typing import Any

import pytest

from autoclave.rules.plain_text import MOST_BYTES, evidence_text


def of_zeroing(namespaces: int) -> dict[str, Any]:
    """Evidence as a zeroing brings it."""
    zeroed = [
        {
            "nsid": nsid,
            "block_device": f"nvme0n{nsid}",
            "bytes": 10**12,
            "seconds": 12345.678,
            "read_back": "sample",
            "read_back_seconds": 1234.567,
        }
        for nsid in range(1, namespaces + 1)
    ]
    return {"action": "shred", "namespaces": zeroed, "bytes": namespaces * 10**12, "verified": "samples"}


@pytest.mark.parametrize("namespaces", [1, 300])
def test_evidence_that_fits_is_kept_whole(namespaces: int) -> None:
    assert json.loads(evidence_text(of_zeroing(namespaces))) == of_zeroing(namespaces)


@pytest.mark.parametrize("namespaces", [460, 1024, 65_536])
def test_namespaces_that_do_not_fit_are_counted(namespaces: int) -> None:
    whole = of_zeroing(namespaces)
    text = evidence_text(whole)
    kept = json.loads(text)
    left = kept.pop("left_out")["namespaces"]["entries"]
    shown = kept.pop("namespaces")
    assert shown == whole.pop("namespaces")[: len(shown)]
    assert kept == whole, "the facts about the whole drive stay"
    assert len(shown) + left == namespaces
    assert MOST_BYTES * 0.9 < len(text) <= MOST_BYTES


def test_a_value_that_is_no_list_is_left_out_whole() -> None:
    """Drivers of vendors may bring anything."""
    evidence = {"action": "erase", "log": "é" * 20_000, "pages": ["x" * 70_000, "y"]}
    kept = json.loads(evidence_text(evidence))
    assert kept["action"] == "erase"
    assert set(kept) == {"action", "left_out"}
    assert kept["left_out"]["log"] == {"bytes": 120_002}
    assert kept["left_out"]["pages"] == {"entries": 1, "bytes": 70_004}
