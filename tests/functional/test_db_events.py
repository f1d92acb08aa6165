"""The history is in order, complete, and gone with a transaction that failed, on SQLite, PostgreSQL and MariaDB."""

import json

import pytest

from autoclave.db import history
from autoclave.db.engine import Database


def append(database: Database, event: str, device: str = "d", evidence: dict[str, object] | None = None) -> None:
    with database.write() as tx:
        history.append(
            tx,
            device_uuid=device,
            serial="S1",
            from_state="cleaning",
            to_state="available",
            event=event,
            actor="agent",
            request_id="req-1",
            reason=None,
            evidence=evidence,
        )


def test_a_history_is_told_in_the_order_in_which_it_happened(database: Database) -> None:
    for event in ("first", "second", "third"):
        append(database, event)
    append(database, "elsewhere", device="other")
    with database.read() as tx:
        found = history.history(tx, "d")
        assert history.history(tx, "nobody") == []
    assert [line.event for line in found] == ["first", "second", "third"]
    assert sorted(line.created_at for line in found) == [line.created_at for line in found]
    assert found[0].serial == "S1"


def test_evidence_is_kept_to_the_letter(database: Database) -> None:
    evidence = {"log": "0x81", "sprog": 65535, "text": "x" * 50_000, "nested": {"ok": [True, None, 1.5]}}
    append(database, "cleaned", evidence=evidence)
    with database.read() as tx:
        (found,) = history.history(tx, "d")
    assert found.evidence is not None
    assert json.loads(found.evidence) == evidence


def test_evidence_of_a_thousand_namespaces_is_kept(database: Database) -> None:
    """MariaDB refuses a text of more than 65535 bytes, and the device would never be clean."""
    zeroed = [{"nsid": nsid, "block_device": f"nvme0n{nsid}", "what": "x" * 100} for nsid in range(1, 1025)]
    append(database, "cleaned", evidence={"namespaces": zeroed, "verified": "samples"})
    with database.read() as tx:
        (found,) = history.history(tx, "d")
    assert len(found.evidence or "") < 65_536
    kept = json.loads(found.evidence or "{}")
    assert kept["verified"] == "samples"
    assert len(kept["namespaces"]) + kept["left_out"]["namespaces"]["entries"] == 1024


def test_an_event_is_gone_with_the_transaction_that_failed(database: Database) -> None:
    def append_and_fail() -> None:
        with database.write() as tx:
            history.append(
                tx, device_uuid="d", serial=None, from_state=None, to_state=None, event="e", actor="a",
                request_id=None, reason=None,
            )  # fmt: skip
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        append_and_fail()
    with database.read() as tx:
        assert history.history(tx, "d") == []
