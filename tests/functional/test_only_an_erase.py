"""An erased type comes back by its erase: nothing else takes it from allocated to available."""

import pytest
from agentworld import AgentWorld

from autoclave.db.tables import attach_handles
from autoclave.lifecycle.transitions import Cause, swap
from autoclave.rules.device_lifecycle import Actor, DeviceState, Event


def test_a_handle_that_is_found_anew_does_not_release_a_drive_that_has_yet_to_be_erased(one_drive: AgentWorld) -> None:
    agent = one_drive.start()
    with one_drive.db.write() as tx:
        tx.execute(attach_handles.update().values(identity="as a migration named it"))
    one_drive.bind()

    agent._discovery.run(one_drive.context)

    assert one_drive.device().device_state is DeviceState.ALLOCATED
    one_drive.assert_promises()


def test_a_drive_cannot_be_released_without_its_erase(one_drive: AgentWorld) -> None:
    one_drive.start()
    device = one_drive.bind()
    with pytest.raises(ValueError, match="is erase: it must not return as it is"), one_drive.db.write() as tx:
        swap(tx, device, Event.RELEASE, Cause(Actor.CONDUCTOR, "conductor-1"))
    assert one_drive.device().device_state is DeviceState.ALLOCATED
