"""Serve the instances of one host, and recover them after a crash."""

from oslo_log import log as logging

from autoclave.agent.compute.instance_actions import InstanceBuilds, InstanceDeletion, InstancePower, InstanceRebuilds
from autoclave.agent.compute.instance_work import InstanceWork, fault
from autoclave.db import instances as instance_rows
from autoclave.db.instances import InstanceRecord
from autoclave.exceptions import AutoclaveError, GuestError
from autoclave.objects.base import RequestContext
from autoclave.rules.instance_states import PowerState, TaskState, VMState

LOG = logging.getLogger(__name__)


class InstanceRecovery:
    """Continue interrupted work on instances, and record the states of guests."""

    def __init__(
        self,
        work: InstanceWork,
        builds: InstanceBuilds,
        deletion: InstanceDeletion,
        power: InstancePower,
        rebuilds: InstanceRebuilds,
    ) -> None:
        self._work = work
        self._builds = builds
        self._deletion = deletion
        self._power = power
        self._rebuilds = rebuilds

    def check(self, context: RequestContext) -> None:
        """Check every instance of this host, at start and in every period. A failure does not stop the others.

        :raises DatabaseUnavailable: the database cannot be read.
        """
        with self._work.ports.db.read() as tx:
            found = instance_rows.on_host(tx, self._work.host)
        for instance in found:
            if self._work.locks.worked_on(instance.uuid):
                continue
            self._work.begin_step()  # a guest may take long to shut down, and so may the next one
            try:
                self._look_at(context, instance)
            except AutoclaveError as error:
                LOG.warning("Instance %s is not put right yet: %s", instance.uuid, error)

    def _look_at(self, context: RequestContext, instance: InstanceRecord) -> None:
        match instance.task_state:
            case TaskState.DELETING:
                self._deletion.delete(context, instance.uuid)
            case TaskState.SPAWNING:
                self._builds.cut_short(instance.uuid)
            case TaskState.POWERING_ON:
                self._power.start(instance.uuid)
            case TaskState.POWERING_OFF:
                self._power.stop(instance.uuid)
            case TaskState.REBOOTING:
                self._power.reboot(instance.uuid)
            case TaskState.REBUILDING:
                # A rebuild has begun only with the agent's run on the row, after a conductor's check.
                if instance.agent_run_id is not None:
                    self._rebuilds.cut_short(instance.uuid)
            case None:
                self._compare(instance)

    def _compare(self, instance: InstanceRecord) -> None:
        """Record a state that the guest reached by itself. It keeps its devices until the instance is deleted."""
        if instance.vm_state is VMState.BUILDING:
            return
        work = self._work
        state = work.driver.state(instance.uuid)
        power = state or PowerState.NOSTATE
        values: dict[str, object] = {}
        if power is not instance.power:
            values["power_state"] = power.value
        if instance.vm_state is not VMState.ERROR:
            if state is None:
                why = GuestError(f"the hypervisor of {work.host} does not know the guest any more")
                what = "The guest of the instance has vanished from its host. It keeps its devices until it is deleted."
                values |= {"vm_state": VMState.ERROR, **fault(why, work.ports.clock(), what)}
            elif (
                vm_state := VMState.ACTIVE if state is PowerState.RUNNING else VMState.STOPPED
            ) is not instance.vm_state:
                values["vm_state"] = vm_state
        if not values:
            return
        note = work.guest_starts if state is PowerState.RUNNING else work.guest_ended
        note(instance)
        noted = work.ports.db.transact(lambda tx: instance_rows.swap(tx, instance, expect_task=None, **values))
        if noted is not None:
            LOG.warning("The guest of instance %s is %s now.", instance.uuid, power.name.lower())


class Instances:
    """Provide all operations of an agent on instances."""

    def __init__(self, work: InstanceWork) -> None:
        builds, deletion, power = InstanceBuilds(work), InstanceDeletion(work), InstancePower(work)
        rebuilds = InstanceRebuilds(work, power)
        self.build = builds.build
        self.delete = deletion.delete
        self.start, self.stop, self.reboot = power.start, power.stop, power.reboot
        self.rebuild = rebuilds.rebuild
        self.check = InstanceRecovery(work, builds, deletion, power, rebuilds).check
