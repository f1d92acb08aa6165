"""Running the guest of an instance anew from another image, with the devices that it has."""

from collections.abc import Mapping
from typing import Any

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.agent.compute.instance_work import InstanceWork
from autoclave.agent.guests import with_claimed
from autoclave.agent.instance_power import InstancePower
from autoclave.db import instances as instance_rows
from autoclave.db.instances import InstanceRecord
from autoclave.exceptions import AutoclaveError, DatabaseUnavailable, StateConflict
from autoclave.rules.instance_states import PowerState, TaskState, VMState

LOG = logging.getLogger(__name__)

_UNTOUCHED = "The instance could not be rebuilt on its host, and stays as it was; the administrator sees why."
_UNKNOWN = "The instance could not be rebuilt on its host; the administrator sees why."
_CUT_SHORT_UNTOUCHED = "The rebuild was cut short on the instance's host, and it stays as it was. Rebuild it again."
_CUT_SHORT = "The rebuild of the instance was cut short on its host. Rebuild it again."

_TOUCHED = "touched"
"""Of ``rebuild``: whether the disk that the instance had, or its guest, may have been touched."""


class InstanceRebuilds:
    """Rebuilds instances. Begun is what a conductor has checked, and what has the agent's run on its row since.

    The row says as well whether the disk may have been touched: so a death before that leaves the instance as it was.
    """

    def __init__(self, work: InstanceWork, power: InstancePower) -> None:
        self._work = work
        self._power = power

    def rebuild(self, instance_uuid: str) -> None:
        """Run the guest anew from the image that the row names; then, if the instance was stopped, shut it down again,
        as Nova does.

        Where that fails before its disk is touched, the instance stays what it was, on its old image. Afterwards
        it is in error: nobody knows which of the two disks the guest would have.

        :raises DatabaseUnavailable: it is not known how far it came; the period's check ends it.
        """
        work = self._work
        with work.locks.of(instance_uuid):
            instance = work.ports.db.transact(lambda tx: self._take(tx, instance_uuid))
            if instance is None or instance.rebuild is None:
                LOG.info("Instance %s is not to be rebuilt now.", instance_uuid)
                return
            work.notify(instance, "rebuild.start")
            touched = bool(instance.rebuild[_TOUCHED])

            def touch() -> None:
                nonlocal touched
                self._note_touched(instance)
                touched = True

            try:
                functions = work.tracker.functions_of(instance_uuid)
                wanted = instance.rebuild
                guest = work.guests.prepare(instance, wanted["image_uuid"], wanted["image"], touch)
                work.guest_starts(instance)
                work.driver.rebuild(with_claimed(guest, functions))
            except DatabaseUnavailable:
                raise
            except AutoclaveError as error:
                what, state = (_UNKNOWN, {"vm_state": VMState.ERROR}) if touched else (_UNTOUCHED, {})
                work.fail(instance, TaskState.REBUILDING, "rebuild", error, what, rebuild=None, **state)
                return
            self._finish(instance, instance.rebuild)

    def _take(self, tx: Connection, instance_uuid: str) -> InstanceRecord | None:
        found = instance_rows.get(tx, instance_uuid, lock=True)
        if found is None or found.host != self._work.host or found.rebuild is None:
            return None
        if not found.rebuild.get("checked"):
            return None  # this message is about an earlier one
        # A message that comes twice begins again what has lost its database; what that had touched stays touched.
        touched = found.rebuild.get(_TOUCHED, found.agent_run_id is not None)
        begun = {**found.rebuild, _TOUCHED: touched}
        return instance_rows.swap(
            tx, found, expect_task=TaskState.REBUILDING, agent_run_id=self._work.run_id, rebuild=begun
        )

    def _note_touched(self, instance: InstanceRecord) -> None:
        touched = {**(instance.rebuild or {}), _TOUCHED: True}
        if self._work.end(instance, TaskState.REBUILDING, rebuild=touched) is None:
            raise StateConflict("it was taken away while its disk was made")

    def _finish(self, instance: InstanceRecord, rebuilt: Mapping[str, Any]) -> None:
        work = self._work
        stopped = instance.vm_state is VMState.STOPPED
        done = work.end(
            instance,
            TaskState.REBUILDING,
            vm_state=VMState.ACTIVE,
            # Whoever dies from here on leaves a stop that is gone on with.
            task_state=TaskState.POWERING_OFF if stopped else None,
            power_state=PowerState.RUNNING.value,
            image_uuid=rebuilt["image_uuid"],
            image=rebuilt["image"],
            rebuild=None,
            launched_at=work.ports.clock(),
        )
        if done is None:
            LOG.info("Instance %s was taken away while it was rebuilt.", instance.uuid)
            return
        work.notify(done, "rebuild.end", work.given(instance.uuid))
        if stopped:
            self._power.stop(instance.uuid)

    def cut_short(self, instance_uuid: str) -> None:
        """End a rebuild that a death cut short: as it was, if its disk was not touched; else nobody knows what is left.

        :raises GuestError: what was made of the new disk cannot be removed.
        :raises DatabaseUnavailable: it is not known whether it is ended.
        """
        work = self._work
        with work.locks.of(instance_uuid):
            instance = work.get(instance_uuid)
            if instance is None or instance.task_state is not TaskState.REBUILDING or instance.agent_run_id is None:
                return
            # Of one that an older release has begun, it is not known.
            untouched = instance.rebuild is not None and instance.rebuild.get(_TOUCHED) is False
            if untouched:
                work.guests.remove_unfinished(instance_uuid)
            what = _CUT_SHORT_UNTOUCHED if untouched else _CUT_SHORT
            state: dict[str, Any] = {} if untouched else {"vm_state": VMState.ERROR}
            work.fail(instance, TaskState.REBUILDING, "rebuild", work.cut_short("rebuilt"), what, rebuild=None, **state)
