"""The instances of one host: what messages ask for, and what the period finds."""

from autoclave.agent.compute.instance_actions import InstanceBuilds
from autoclave.agent.compute.instance_work import InstanceWork
from autoclave.agent.compute.instances import InstanceRecovery
from autoclave.agent.instance_deletion import InstanceDeletion
from autoclave.agent.instance_power import InstancePower
from autoclave.agent.instance_rebuilds import InstanceRebuilds


class Instances:
    """All that an agent does with instances; see the parts."""

    def __init__(self, work: InstanceWork) -> None:
        builds, deletion, power = InstanceBuilds(work), InstanceDeletion(work), InstancePower(work)
        rebuilds = InstanceRebuilds(work, power)
        self.build = builds.build
        self.delete = deletion.delete
        self.start, self.stop, self.reboot = power.start, power.stop, power.reboot
        self.rebuild = rebuilds.rebuild
        self.check = InstanceRecovery(work, builds, deletion, power, rebuilds).check
