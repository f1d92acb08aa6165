"""The instances of one host: what messages ask for, and what the period finds."""

from collections.abc import Mapping, Sequence

from autoclave.agent.instance_builds import InstanceBuilds
from autoclave.agent.instance_deletion import InstanceDeletion
from autoclave.agent.instance_power import InstancePower
from autoclave.agent.instance_rebuilds import InstanceRebuilds
from autoclave.agent.instance_recovery import InstanceRecovery
from autoclave.agent.instance_work import InstanceWork
from autoclave.objects.context import RequestContext


class Instances:
    """All that an agent does with instances; see the parts."""

    def __init__(self, work: InstanceWork) -> None:
        self._builds = InstanceBuilds(work)
        self._deletion = InstanceDeletion(work)
        self._power = InstancePower(work)
        self._rebuilds = InstanceRebuilds(work, self._power)
        self._recovery = InstanceRecovery(work, self._builds, self._deletion, self._power, self._rebuilds)

    def build(self, context: RequestContext, instance_uuid: str, groups: Mapping[str, Sequence[str]]) -> None:
        """See :meth:`InstanceBuilds.build`."""
        self._builds.build(context, instance_uuid, groups)

    def delete(self, context: RequestContext, instance_uuid: str) -> None:
        """See :meth:`InstanceDeletion.delete`."""
        self._deletion.delete(context, instance_uuid)

    def start(self, instance_uuid: str) -> None:
        """See :meth:`InstancePower.start`."""
        self._power.start(instance_uuid)

    def stop(self, instance_uuid: str) -> None:
        """See :meth:`InstancePower.stop`."""
        self._power.stop(instance_uuid)

    def reboot(self, instance_uuid: str) -> None:
        """See :meth:`InstancePower.reboot`."""
        self._power.reboot(instance_uuid)

    def rebuild(self, instance_uuid: str) -> None:
        """See :meth:`InstanceRebuilds.rebuild`."""
        self._rebuilds.rebuild(instance_uuid)

    def check(self, context: RequestContext) -> None:
        """See :meth:`InstanceRecovery.check`."""
        self._recovery.check(context)
