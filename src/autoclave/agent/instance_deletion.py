"""Deleting an instance: its guest, what it holds, its row; in the order in which nothing dirty is offered."""

from oslo_log import log as logging

from autoclave.agent.compute.instance_work import InstanceWork
from autoclave.db import instances as instance_rows
from autoclave.objects.base import RequestContext
from autoclave.rules.instance_states import TaskState

LOG = logging.getLogger(__name__)


class InstanceDeletion:
    """Deletes instances. ``deleting`` stays on the row until all is done: whoever finds it there goes on."""

    def __init__(self, work: InstanceWork) -> None:
        self._work = work
        self._told: set[str] = set()
        """Instances whose listeners know that they are being deleted: a deletion that is stuck is told once."""

    def delete(self, context: RequestContext, instance_uuid: str) -> None:
        """Delete an instance that is marked for it. Every step may be done twice, by this run or the next.

        :raises AutoclaveError: not all is done; the period's check goes on.
        """
        work = self._work
        with work.locks.of(instance_uuid):
            instance = work.get(instance_uuid)
            if instance is None or instance.task_state is not TaskState.DELETING:
                self._told.discard(instance_uuid)
                return
            if instance_uuid not in self._told:
                work.notify(instance, "delete.start", work.given(instance_uuid))
                self._told.add(instance_uuid)
            work.driver.destroy(instance_uuid)
            work.guest_ended(instance)
            work.guests.remove_files(instance_uuid)
            given = work.given(instance_uuid)
            work.give_back(context, instance_uuid)
            work.ports.db.transact(lambda tx: instance_rows.delete(tx, instance_uuid))
            self._told.discard(instance_uuid)
            LOG.info("Instance %s is gone.", instance_uuid)
            gone = work.ports.clock()
            work.notify(instance, "delete.end", given, state="deleted", task_state=None, terminated_at=gone)
