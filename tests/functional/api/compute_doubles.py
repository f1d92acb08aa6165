"""Who builds and runs servers, at the other end of RPC: they note what they are asked, and do it to the row."""

from dataclasses import dataclass, field
from typing import Any

from autoclave.conductor.manager import ConductorManager
from autoclave.db import compute_hosts
from autoclave.db import instances as instance_rows
from autoclave.db.columns import utcnow
from autoclave.db.engine import Database
from autoclave.db.instances import InstanceRecord
from autoclave.exceptions import BadRequest
from autoclave.objects.context import RequestContext
from autoclave.objects.device import Device
from autoclave.rules.instance_states import PowerState, TaskState, VMState


@dataclass
class Doing:
    """What they have in common.

    :attr asked: method and instance, in order.
    :attr finish: whether they do what they are asked; otherwise they have only taken it.
    :attr refusal: what is said against a request that is to be checked.
    """

    db: Database
    asked: list[tuple[str, Any]] = field(default_factory=list)
    finish: bool = True
    refusal: str | None = None

    def note(self, method: str, uuid: str) -> InstanceRecord | None:
        """The instance, if something is to be done with it now."""
        self.asked.append((method, uuid))
        with self.db.read() as tx:
            return instance_rows.get(tx, uuid) if self.finish else None

    def move(self, instance: InstanceRecord | None, task: TaskState | None, **values: Any) -> None:
        if instance is not None:
            with self.db.write() as tx:
                assert instance_rows.swap(tx, instance, expect_task=task, task_state=None, **values)


class InstanceConductor(ConductorManager):
    """A conductor whose part for instances is a double."""

    def __init__(self, doing: Doing, *args: Any) -> None:
        super().__init__(*args)
        self._doing = doing

    def check_request(self, context: RequestContext, flavor: dict[str, Any], image: dict[str, Any]) -> None:
        self._doing.asked.append(("check_request", (flavor["name"], image["name"])))
        if self._doing.refusal is not None:
            raise BadRequest(self._doing.refusal)

    def build_instance(self, context: RequestContext, instance_uuid: str) -> None:
        instance = self._doing.note("build_instance", instance_uuid)
        with self._doing.db.read() as tx:
            hosts = [host.hostname for host in compute_hosts.list_all(tx)]
        if instance is None:
            return
        if not hosts:
            fault = {"fault_code": 500, "fault_message": "No valid host was found.", "fault_at": utcnow()}
            self._doing.move(instance, TaskState.SCHEDULING, vm_state=VMState.ERROR, **fault)
            return
        self._doing.move(
            instance,
            TaskState.SCHEDULING,
            host=instance.requested_host or hosts[0],
            vm_state=VMState.ACTIVE,
            power_state=PowerState.RUNNING,
            launched_at=utcnow(),
        )

    def delete_instance(self, context: RequestContext, instance_uuid: str) -> None:
        if self._doing.note("delete_instance", instance_uuid) is not None:
            with self._doing.db.write() as tx:
                assert instance_rows.delete(tx, instance_uuid)

    def rebuild_instance(self, context: RequestContext, instance_uuid: str) -> None:
        instance = self._doing.note("rebuild_instance", instance_uuid)
        if instance is not None:
            assert instance.rebuild is not None
            self._doing.move(instance, TaskState.REBUILDING, **instance.rebuild, rebuild=None, vm_state=VMState.ACTIVE)


class InstanceAgent:
    """An agent that notes what it is asked, of devices and of instances."""

    def __init__(self, doing: Doing) -> None:
        self._doing = doing
        self.asked: list[Device] = []

    def cleanup_device(self, context: RequestContext, device: Device) -> None:
        self.asked.append(device)

    def start_instance(self, context: RequestContext, instance_uuid: str) -> None:
        self._power("start_instance", instance_uuid, TaskState.POWERING_ON, VMState.ACTIVE, PowerState.RUNNING)

    def stop_instance(self, context: RequestContext, instance_uuid: str) -> None:
        self._power("stop_instance", instance_uuid, TaskState.POWERING_OFF, VMState.STOPPED, PowerState.SHUTDOWN)

    def reboot_instance(self, context: RequestContext, instance_uuid: str) -> None:
        self._power("reboot_instance", instance_uuid, TaskState.REBOOTING, VMState.ACTIVE, PowerState.RUNNING)

    def _power(self, method: str, uuid: str, task: TaskState, vm: VMState, power: PowerState) -> None:
        self._doing.move(self._doing.note(method, uuid), task, vm_state=vm, power_state=power)
