"""Share what all work on instances needs: rows, guests, locks."""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.agent.compute.claims import ResourceTracker
from autoclave.db import arqs as arq_rows
from autoclave.db import images
from autoclave.db import instances as instance_rows
from autoclave.db.arqs import ARQView
from autoclave.db.devices import DeviceRecord
from autoclave.db.engine import Database
from autoclave.db.instances import InstanceRecord
from autoclave.db.pci import FunctionRecord
from autoclave.db.tables import AttachType
from autoclave.exceptions import ApiError, GuestError, PlacementNotFound, StateConflict
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.reserve import settle
from autoclave.lifecycle.tenants import guest_ended, guest_starts
from autoclave.lifecycle.transitions import Cause
from autoclave.objects.base import RequestContext
from autoclave.objects.instance_action import GivenFunction, instance_action
from autoclave.rpc.conductor_api import ConductorAPI
from autoclave.rpc.notifications import Notification, Notifications
from autoclave.rules.device_lifecycle import Actor, ARQState, DeviceState
from autoclave.rules.flavor_image import DiskFormat, disk_format_of, firmware_of
from autoclave.rules.instance_states import TaskState
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.resource_names import read
from autoclave.virt.disks import InstanceFiles
from autoclave.virt.driver import ComputeDriver
from autoclave.virt.guest import GuestSpec

LOG = logging.getLogger(__name__)


class InstanceLocks:
    """Lock instances: concurrent work waits, so that no guest is started after its deletion."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
        self._wanted: Counter[str] = Counter()

    @contextmanager
    def of(self, instance_uuid: str) -> Iterator[None]:
        """Hold the instance's lock."""
        with self._guard:
            self._wanted[instance_uuid] += 1
            lock = self._locks[instance_uuid]
        try:
            with lock:
                yield
        finally:
            with self._guard:
                self._wanted[instance_uuid] -= 1
                if not self._wanted[instance_uuid]:
                    del self._wanted[instance_uuid], self._locks[instance_uuid]

    def worked_on(self, instance_uuid: str) -> bool:
        """Return whether a thread holds the lock or waits for it."""
        with self._guard:
            return self._wanted[instance_uuid] > 0


class Guests:
    """Describe guests to the hypervisor.

    :param files: creates disks; None where guests have none, as on simulated hosts.
    """

    def __init__(self, db: Database, files: InstanceFiles | None) -> None:
        self._db = db
        self._files = files

    def prepare(
        self,
        instance: InstanceRecord,
        image_uuid: str,
        image: Mapping[str, Any],
        before_replacing: Callable[[], None] = lambda: None,
    ) -> GuestSpec:
        """Return the guest of *instance* with a new disk from an image, but without the functions of
        :func:`with_claimed`.

        :param image: the image's properties as stored with the instance (``instances.image``).
        :param before_replacing: called when the new disk is complete and before it replaces the old one; an exception
            keeps the old one.
        :raises BadRequest: the image requires what guests do not support.
        :raises GuestError: the device of an accelerator request cannot be read, or the disk cannot be created. After
            any error, the old disk is kept.
        """
        firmware = firmware_of(image["properties"])
        hostdevs = self._of_arqs(instance.uuid)
        disk, disk_format = self._disk(instance, image_uuid, before_replacing)  # last, because it replaces the old disk
        return GuestSpec(
            uuid=instance.uuid,
            name=instance.name,
            vcpus=instance.flavor["vcpus"],
            memory_mb=instance.flavor["ram"],
            disk=disk,
            hostdevs=tuple(hostdevs),
            disk_format=disk_format,
            firmware=firmware,
        )

    def remove_unfinished(self, instance_uuid: str) -> None:
        """Remove a new disk that a crash left unfinished; the old one stays.

        :raises GuestError: the file could not be removed.
        """
        if self._files is not None:
            self._files.remove_unfinished(instance_uuid)

    def remove_files(self, instance_uuid: str) -> None:
        """Remove the disk of a deleted guest.

        :raises GuestError: the disk could not be removed.
        """
        if self._files is not None:
            self._files.remove(instance_uuid)

    def _of_arqs(self, instance_uuid: str) -> list[Mapping[str, Any]]:
        with self._db.read() as tx:
            views = arq_rows.views(tx, instance_uuid=instance_uuid)
        return [_of_arq(view) for view in views if view.attach_handle_type != AttachType.TEST_PCI]

    def _disk(
        self, instance: InstanceRecord, image_uuid: str, before_replacing: Callable[[], None]
    ) -> tuple[Path | None, DiskFormat]:
        if self._files is None:
            before_replacing()
            return None, DiskFormat.RAW
        with self._db.read() as tx:
            image = images.get(tx, image_uuid)
        if image is None:
            raise GuestError(f"image {image_uuid} was deleted")
        disk_format = disk_format_of(image.disk_format)
        size_gb = instance.flavor["disk"]
        return self._files.make_disk(instance.uuid, image_uuid, disk_format, size_gb, before_replacing), disk_format


def with_claimed(guest: GuestSpec, functions: Iterable[FunctionRecord]) -> GuestSpec:
    """Return *guest* with the functions that its instance has claimed."""
    return replace(guest, hostdevs=(*map(_of_claim, functions), *guest.hostdevs))


def _of_claim(function: FunctionRecord) -> Mapping[str, Any]:
    return {**PCIAddress.parse(function.address).as_attach_info(), "managed": function.managed}


def _of_arq(view: ARQView) -> Mapping[str, Any]:
    """Return a request as in microversion 2.4 of the accelerator API, with ``managed`` true by default."""
    if view.arq.state is not ARQState.BOUND or view.attach_handle_info is None:
        raise GuestError(f"accelerator request {view.arq.uuid} is {view.arq.state.value} and has no device")
    attaching = read(view.attach_handle_info)
    if attaching.fault is not None:
        raise GuestError(f"attach_info of handle {view.attach_handle_uuid} {attaching.fault}")
    return {**attaching.where, "managed": attaching.managed}


@dataclass(frozen=True)
class InstanceWork:
    """Bundle what work on a host's instances needs.

    :param run_id: id of this run of the agent; work of other runs has ended.
    :param begin_step: reports that the period progresses and is not stuck.
    :param clean: begins to clean a device that an instance has returned.
    """

    ports: Ports
    driver: ComputeDriver
    guests: Guests
    tracker: ResourceTracker
    conductor: ConductorAPI
    notifications: Notifications
    host: str
    run_id: str
    begin_step: Callable[[], None]
    clean: Callable[[RequestContext, DeviceRecord], None]
    locks: InstanceLocks = field(default_factory=InstanceLocks)

    def get(self, instance_uuid: str) -> InstanceRecord | None:
        """Return the instance, if it is on this host."""
        with self.ports.db.read() as tx:
            found = instance_rows.get(tx, instance_uuid)
        if found is None or found.host != self.host:
            LOG.info("Instance %s is no longer on %s: nothing is done.", instance_uuid, self.host)
            return None
        return found

    def end(self, instance: InstanceRecord, task: TaskState, **values: Any) -> InstanceRecord | None:
        """Write the outcome of *task*; the caller holds the instance's lock, so no other thread works on it.

        A deletion that was requested and rolled back since does not prevent the write. Another run of the agent does: a
        task of the same name is then different work.

        :param values: columns to write, including the next ``task_state``.
        :returns: the instance as it is now; None if it is being deleted, gone, or another run's, and nothing was
            written.
        """

        def write(tx: Connection) -> InstanceRecord | None:
            now = instance_rows.get(tx, instance.uuid, lock=True)
            if now is None or now.agent_run_id != instance.agent_run_id:
                return None
            return instance_rows.swap(tx, now, expect_task=task, **values)

        return self.ports.db.transact(write)

    def guest_starts(self, instance: InstanceRecord) -> None:
        """Record the start of the guest in the history of its devices; call this before the start.

        :raises DatabaseUnavailable: nothing was recorded; the guest must not be started.
        """
        cause = Cause(Actor.AGENT, self.host)
        self.ports.db.transact(lambda tx: guest_starts(tx, instance, cause))

    def guest_ended(self, instance: InstanceRecord) -> None:
        """Record the end of the guest, if its start is on record. This can be repeated.

        :raises DatabaseUnavailable: nothing was recorded.
        """
        cause = Cause(Actor.AGENT, self.host)
        self.ports.db.transact(lambda tx: guest_ended(tx, instance, cause))

    def give_back(self, context: RequestContext, instance_uuid: str) -> None:
        """Give back everything held by an instance whose guest is gone for good. Every step can be repeated.

        The order prevents offering a device that the guest has had. Burned devices, and devices whose row is outdated,
        are reserved first. The allocation goes last, because it keeps all devices from being offered until then.

        :raises AutoclaveError: something was not given back; the caller can retry.
        """
        settled = self.tracker.settle(instance_uuid)
        self._delete_arqs(context, instance_uuid)
        freed = self.tracker.free(instance_uuid)
        # Until :meth:`free`, a sync with a new policy may have burned devices of the instance.
        settled |= self.tracker.settle(instance_uuid, but=settled)
        self.tracker.withhold([device for device in freed if device.uuid not in settled])
        try:
            self.ports.placement.delete_allocations(instance_uuid)
        except PlacementNotFound:
            LOG.debug("Instance %s holds nothing in Placement.", instance_uuid)
        for device in freed:
            self._move_on(context, device)

    def _move_on(self, context: RequestContext, device: DeviceRecord) -> None:
        """Clean a device that its instance has left, or reconcile it.

        This confirms a spent device, so that a client may release it once it is notified of the deletion.
        """
        if device.supports_cleaning and device.device_state is DeviceState.ALLOCATED:
            self.clean(context, device)
        elif device.device_state is DeviceState.SPENT or device.release_pending:
            settle(self.ports.db, self.ports.placement, device.uuid)

    def cut_short(self, what: str) -> GuestError:
        """Return the error for work on an instance that was interrupted with an earlier run of the agent.

        :param what: the interrupted operation, in the past tense.
        """
        return GuestError(f"the agent of {self.host} was stopped, or lost its database, while it {what} the instance")

    def burned_words(self, instance_uuid: str) -> str:
        """Return the end of a sentence that names the devices left burned, or an empty string."""
        addresses = [each.address for each in self.tracker.providers_of(instance_uuid) if each.burned]
        return f"; {', '.join(addresses)} stays burned" if addresses else ""

    def notify(self, instance: InstanceRecord, action: str, given: Iterable[GivenFunction] = (), **more: Any) -> None:
        """Emit the notification ``instance.<action>``.

        :param more: arguments of :func:`instance_action`, which override values of the row.
        """
        task = instance.task_state.value if instance.task_state else None
        of_row: dict[str, Any] = {"state": instance.vm_state.value, "task_state": task}
        payload = instance_action(
            uuid=instance.uuid,
            display_name=instance.name,
            project_id=instance.project_id,
            user_id=instance.user_id,
            host=self.host,
            flavor=instance.flavor,
            image_uuid=instance.image_uuid,
            created_at=instance.created_at,
            launched_at=instance.launched_at,
            pci_functions=given,
            **{**of_row, **more},
        )
        publisher = f"autoclave-agent:{self.host}"
        self.notifications.emit(Notification(publisher, f"instance.{action}", payload, error=action.endswith(".error")))

    def fail(
        self,
        instance: InstanceRecord,
        task: TaskState,
        action: str,
        error: Exception,
        what: str,
        *,
        burned: str = "",
        **values: Any,
    ) -> None:
        """End *task* with a fault, and notify of it; do neither if the row has changed.

        :param action: the action in ``instance.<action>.error``.
        :param what: message for users; administrators also get the error.
        :param burned: :meth:`burned_words`, for administrators only, because it names addresses of the host.
        :param values: other columns to write.
        """
        LOG.warning("Instance %s, %s on %s: %s%s", instance.uuid, task.value, self.host, error, burned)
        told = fault(error, self.ports.clock(), what)
        told["fault_details"] += burned
        failed = self.end(instance, task, task_state=None, **values, **told)
        if failed is not None:
            self.notify(failed, f"{action}.error", self.given(instance.uuid), fault=str(error))

    def given(self, instance_uuid: str) -> list[GivenFunction]:
        """Return the functions of the instance, for notifications."""
        providers = self.tracker.providers_of(instance_uuid)
        functions = self.tracker.functions_of(instance_uuid)
        return [
            GivenFunction(address, provider.uuid, provider.resource_class, provider.one_time_use, provider.burned)
            for provider in providers
            for address in [f.address for f in functions if f.provider_id == provider.id] or [provider.address]
        ]

    def _delete_arqs(self, context: RequestContext, instance_uuid: str) -> None:
        if not self._arqs_left(instance_uuid):
            return
        # As an administrator, because the requests belong to the instance, whichever user deletes it.
        admin = RequestContext.admin(context.request_id)
        self.conductor.arq_delete_for_instance(admin, instance_uuid)
        left = self._arqs_left(instance_uuid)
        if left:
            raise StateConflict(f"accelerator request {left[0]} of instance {instance_uuid} is not given back yet")

    def _arqs_left(self, instance_uuid: str) -> list[str]:
        with self.ports.db.read() as tx:
            return [each.uuid for each in arq_rows.of_instance(tx, instance_uuid)]


def fault(error: Exception, now: datetime, what: str) -> dict[str, Any]:
    """Return the fault columns, with a message for users and details for administrators.

    :param what: message for users.
    """
    code = error.code if isinstance(error, ApiError) else 500
    message = str(error) if isinstance(error, ApiError) else what
    return {"fault_code": code, "fault_message": message, "fault_details": str(error), "fault_at": now}
