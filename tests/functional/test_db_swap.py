"""What a swap returns is the row as it is now, whether it is read again or known from what was written."""

import pytest

from autoclave.db import devices
from autoclave.db.engine import Database
from autoclave.db.tables import DeviceType
from autoclave.lifecycle.swap import Cause, swap
from autoclave.rules.device_states import TRANSITIONS, DeviceState, Event, Transition
from dbfixtures import make_device


@pytest.mark.parametrize("edge", TRANSITIONS, ids=lambda edge: f"{edge.source}-{edge.event}")
def test_what_a_swap_of_a_locked_row_returns_is_what_the_database_has(database: Database, edge: Transition) -> None:
    cause = Cause(min(edge.actors), "somebody", "req-1", "a reason", {"seen": "it"})
    erased = edge.event is not Event.RELEASE
    with database.write() as tx:
        made = make_device(
            tx,
            type=DeviceType.NVME if erased else DeviceType.GPU,
            device_state=edge.source,
            serial="S1",
            found_serial="S1",
            hold_reason="a demonstration",
            release_pending=edge.source is DeviceState.AVAILABLE,
            progress_percent=12.5,
            progress_stalled=True,
            progress_seconds_left=0.1,
        )
    with database.write() as tx:
        locked = devices.get(tx, made.uuid, lock=True)
        assert locked is not None
        moved = swap(tx, locked, edge.event, cause, {"agent_run_id": "run-1"}, locked=True)
        assert moved == devices.get(tx, made.uuid)
    with database.read() as tx:
        assert moved == devices.get(tx, made.uuid)
    assert (moved.device_state, moved.state_version) == (edge.target, made.state_version + 1)


def test_what_a_swap_returns_of_a_row_that_was_not_locked_has_what_others_wrote(database: Database) -> None:
    [edge] = [edge for edge in TRANSITIONS if edge.event is Event.USED_UP]
    with database.write() as tx:
        seen = make_device(tx)
        devices.update(tx, seen, {"held": True})  # neither the state nor its version
        moved = swap(tx, seen, edge.event, Cause(min(edge.actors), "somebody"))
    assert moved.held
