"""An agent at the other end of RPC: it notes what it is asked, and does it to the row, without a host."""

from collections.abc import Mapping, Sequence
from typing import Any

from autoclave.db import instances as instance_rows
from autoclave.db.columns import utcnow
from autoclave.db.instances import InstanceRecord
from autoclave.lifecycle.ports import Ports
from autoclave.objects.base import Device, RequestContext
from autoclave.rules.instance_states import PowerState, TaskState, VMState

ON = {"vm_state": VMState.ACTIVE, "power_state": PowerState.RUNNING}
OFF = {"vm_state": VMState.STOPPED, "power_state": PowerState.SHUTDOWN}


class InstanceAgent:
    """:attr asked: the devices that it shall clean.
    :attr messages: method and instance, in order.
    :attr users: those of every function.
    :attr finish: whether it does what it is asked to do with instances; otherwise it has only taken it.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self.asked: list[Device] = []
        self.messages: list[tuple[str, str]] = []
        self.finish = True
        self.users: list[str] = []

    def cleanup_device(self, context: RequestContext, device: Device) -> None:
        self.asked.append(device)

    def function_users(self, context: RequestContext, addresses: Sequence[str]) -> dict[str, list[str]]:
        return dict.fromkeys(addresses, self.users)

    def build_instance(self, context: RequestContext, instance_uuid: str, groups: Mapping[str, Sequence[str]]) -> None:
        self._do("build_instance", instance_uuid, TaskState.SCHEDULING, **ON, launched_at=utcnow(), agent_run_id="run")

    def start_instance(self, context: RequestContext, instance_uuid: str) -> None:
        self._do("start_instance", instance_uuid, TaskState.POWERING_ON, **ON)

    def stop_instance(self, context: RequestContext, instance_uuid: str) -> None:
        self._do("stop_instance", instance_uuid, TaskState.POWERING_OFF, **OFF)

    def reboot_instance(self, context: RequestContext, instance_uuid: str) -> None:
        self._do("reboot_instance", instance_uuid, TaskState.REBOOTING, **ON)

    def rebuild_instance(self, context: RequestContext, instance_uuid: str) -> None:
        instance = self._note("rebuild_instance", instance_uuid)
        if instance is not None:
            assert instance.rebuild is not None
            image = {name: instance.rebuild[name] for name in ("image_uuid", "image")}
            self._move(instance, TaskState.REBUILDING, **image, rebuild=None, **ON, agent_run_id="run")

    def delete_instance(self, context: RequestContext, instance_uuid: str) -> None:
        if self._note("delete_instance", instance_uuid) is not None:
            self._ports.placement.delete_allocations(instance_uuid)
            with self._ports.db.write() as tx:
                assert instance_rows.delete(tx, instance_uuid)

    def _do(self, method: str, uuid: str, task: TaskState, **values: Any) -> None:
        instance = self._note(method, uuid)
        if instance is not None:
            self._move(instance, task, **values)

    def _note(self, method: str, uuid: str) -> InstanceRecord | None:
        """The instance, if something is to be done with it now."""
        self.messages.append((method, uuid))
        with self._ports.db.read() as tx:
            return instance_rows.get(tx, uuid) if self.finish else None

    def _move(self, instance: InstanceRecord, task: TaskState, **values: Any) -> None:
        with self._ports.db.write() as tx:
            assert instance_rows.swap(tx, instance, expect_task=task, task_state=None, **values)
