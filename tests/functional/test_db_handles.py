"""A handle is in use iff an active request names it, on SQLite, PostgreSQL and MariaDB."""

from dataclasses import replace

import pytest
from oslo_db.exception import DBDuplicateEntry

from autoclave.db import handles
from autoclave.db.engine import Database
from autoclave.db.tables import AttachType
from autoclave.rules.device_lifecycle import ARQState
from dbfixtures import make_arq, make_handle, make_slot


def test_a_handle_is_free_unless_an_active_request_names_it(database: Database) -> None:
    with database.write() as tx:
        slot = make_slot(tx)
        made = {state: make_handle(tx, slot.deployable.id, state) for state in ARQState}
        for state, handle_id in made.items():
            make_arq(tx, state=state, attach_handle_id=handle_id)
        make_arq(tx, state=ARQState.INITIAL, attach_handle_id=made[ARQState.BOUND])
        make_slot(tx)
    with database.read() as tx:
        free = handles.free(tx, slot.deployable.id)
    unheld = (ARQState.INITIAL, ARQState.BIND_FAILED, ARQState.UNBOUND)
    assert [handle.id for handle in free] == [slot.handle_id, *(made[state] for state in unheld)]
    assert free[0].attach_type is AttachType.PCI


def test_a_deployable_has_one_handle_an_identity(database: Database) -> None:
    with database.write() as tx:
        slot, other = make_slot(tx), make_slot(tx)
        make_handle(tx, other.deployable.id, slot.device.pci_address)
    with pytest.raises(DBDuplicateEntry), database.write() as tx:
        make_handle(tx, slot.deployable.id, slot.device.pci_address)


def test_the_handles_of_several_deployables_say_which_are_in_use(database: Database) -> None:
    with database.write() as tx:
        one, other = make_slot(tx), make_slot(tx)
        taken = make_handle(tx, one.deployable.id, "taken")
        make_arq(tx, state=ARQState.BOUND, attach_handle_id=taken)
    with database.read() as tx:
        found = handles.of_deployables(tx, [one.deployable.id, other.deployable.id])
    assert {key: [(use.handle.id, use.in_use) for use in uses] for key, uses in found.items()} == {
        one.deployable.id: [(one.handle_id, False), (taken, True)],
        other.deployable.id: [(other.handle_id, False)],
    }


def test_a_handle_that_changes_or_goes_leaves_the_others(database: Database) -> None:
    with database.write() as tx:
        slot = make_slot(tx)
        make_handle(tx, slot.deployable.id, "gone")
        first, second = handles.free(tx, slot.deployable.id)
        handles.set_attach_info(tx, first, '{"managed": false}')
        handles.delete(tx, second)
    with database.read() as tx:
        [left] = handles.free(tx, slot.deployable.id)
    assert left == replace(first, attach_info='{"managed": false}')
