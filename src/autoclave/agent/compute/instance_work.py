"""Share what all work on instances needs: rows, guests, locks.

What all that an agent does with instances needs: their rows, their guests, what they hold, and who is told.

One lock per instance, within the one agent of a host.

What the guest of an instance is made of: its row, its functions, its accelerator requests and its disk.
"""

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
from autoclave.db.engine import Database
from autoclave.db.instances import InstanceRecord
from autoclave.db.pci import FunctionRecord
from autoclave.db.tables import AttachType
from autoclave.exceptions import ApiError, GuestError, PlacementNotFound, StateConflict
from autoclave.lifecycle.burn import settle_provider
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.tenants import guest_ended, guest_starts
from autoclave.lifecycle.transitions import Cause
from autoclave.objects.base import RequestContext
from autoclave.objects.instance_action import GivenFunction, instance_action
from autoclave.rpc.conductor_api import ConductorAPI
from autoclave.rpc.notifications import Notification, Notifications
from autoclave.rules.device_lifecycle import Actor, ARQState
from autoclave.rules.flavor_image import DiskFormat, disk_format_of, firmware_of
from autoclave.rules.instance_states import TaskState
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.resource_names import read
from autoclave.virt.disks import InstanceFiles
from autoclave.virt.driver import ComputeDriver
from autoclave.virt.guest import GuestSpec


class InstanceLocks:
    """Who works on which instance: what comes second waits, so that no guest is started after its deletion."""

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
        """Whether somebody has the lock or waits for it."""
        with self._guard:
            return self._wanted[instance_uuid] > 0


class Guests:
    """Describes guests to the hypervisor.

    :param files: where disks are made; None where guests have none, as those of simulated hosts.
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
        """The guest of *instance*, with a fresh disk of an image, and before :func:`with_claimed`.

        :param image: what the instance keeps of the image (``instances.image``).
        :param before_replacing: called when the fresh disk is whole, before the one that the instance has is touched;
            what it raises leaves that one.
        :raises BadRequest: the image asks for what guests have not.
        :raises GuestError: an accelerator request has no device that can be read, or the disk cannot be made. The
            instance has the disk that it had, as after any other error.
        """
        firmware = firmware_of(image["properties"])
        hostdevs = self._of_arqs(instance.uuid)
        disk, disk_format = self._disk(instance, image_uuid, before_replacing)  # last: it replaces the one there was
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
        """Remove what a death left of a disk that was being made; the one that the instance has stays.

        :raises GuestError: it is still there.
        """
        if self._files is not None:
            self._files.remove_unfinished(instance_uuid)

    def remove_files(self, instance_uuid: str) -> None:
        """Remove the disk of a guest that is gone.

        :raises GuestError: it is still there.
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
    """*guest* with the functions that its instance has claimed."""
    return replace(guest, hostdevs=(*map(_of_claim, functions), *guest.hostdevs))


def _of_claim(function: FunctionRecord) -> Mapping[str, Any]:
    return {**PCIAddress.parse(function.address).as_attach_info(), "managed": function.managed}


def _of_arq(view: ARQView) -> Mapping[str, Any]:
    """As the accelerator API shows it from microversion 2.4 on: with ``managed``, true where nothing is stored."""
    if view.arq.state is not ARQState.BOUND or view.attach_handle_info is None:
        raise GuestError(f"accelerator request {view.arq.uuid} is {view.arq.state.value} and has no device")
    attaching = read(view.attach_handle_info)
    if attaching.fault is not None:
        raise GuestError(f"attach_info of handle {view.attach_handle_uuid} {attaching.fault}")
    return {**attaching.where, "managed": attaching.managed}


LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class InstanceWork:
    """The world of a host's instances.

    :param run_id: this run of the agent; what another run was at, nobody is at any more.
    :param begin_step: says that the period goes on: it is not stuck at what it was at.
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
    locks: InstanceLocks = field(default_factory=InstanceLocks)

    def get(self, instance_uuid: str) -> InstanceRecord | None:
        """The instance, if it is on this host."""
        with self.ports.db.read() as tx:
            found = instance_rows.get(tx, instance_uuid)
        if found is None or found.host != self.host:
            LOG.info("Instance %s is not on %s any more: nothing is done.", instance_uuid, self.host)
            return None
        return found

    def end(self, instance: InstanceRecord, task: TaskState, **values: Any) -> InstanceRecord | None:
        """Write what became of *task*, by the holder of the instance's lock: no other thread works on it.

        A deletion that was asked for, and taken back because nobody took the message, changes nothing for him. Another
        run of the agent, which this one has been taken over by, does: its work has the same name, and is another.

        :param values: with the ``task_state`` that comes next.
        :returns: the instance as it is now; None: it is being deleted, gone, or another run's, and nothing was written.
        """

        def write(tx: Connection) -> InstanceRecord | None:
            now = instance_rows.get(tx, instance.uuid, lock=True)
            if now is None or now.agent_run_id != instance.agent_run_id:
                return None
            return instance_rows.swap(tx, now, expect_task=task, **values)

        return self.ports.db.transact(write)

    def guest_starts(self, instance: InstanceRecord) -> None:
        """Record the start of the guest in the history of its devices; before it is started.

        :raises DatabaseUnavailable: it could not be recorded: the guest must not be started.
        """
        cause = Cause(Actor.AGENT, self.host)
        self.ports.db.transact(lambda tx: guest_starts(tx, instance, cause))

    def guest_ended(self, instance: InstanceRecord) -> None:
        """Record the end of the guest, if its start is on record. May be done twice.

        :raises DatabaseUnavailable: it could not be recorded.
        """
        cause = Cause(Actor.AGENT, self.host)
        self.ports.db.transact(lambda tx: guest_ended(tx, instance, cause))

    def give_back(self, context: RequestContext, instance_uuid: str) -> None:
        """Give back all that an instance holds whose guest is gone for good. Every step may be done twice.

        In the order in which nothing is ever offered that a guest has had: what is burned is reserved first, and the
        allocation, which keeps the devices from being offered until then, goes last. What is not to be offered as it is
        on record is reserved before that, too.

        :raises AutoclaveError: something could not be given back, and may be tried again.
        """
        settled = self.tracker.settle(instance_uuid)
        self._delete_arqs(context, instance_uuid)
        self.tracker.free(instance_uuid)
        # A sync with a new one_time_use mark burns what an instance still has: until here, and no longer.
        burned = settled | self.tracker.settle(instance_uuid, but=settled)
        self.tracker.withhold(instance_uuid)
        try:
            self.ports.placement.delete_allocations(instance_uuid)
        except PlacementNotFound:
            LOG.debug("Instance %s holds nothing in Placement.", instance_uuid)
        for rp_uuid in sorted(burned):
            # Seen idle now, so that a cleaner may release it as soon as it hears of the deletion.
            settle_provider(self.ports.db, self.ports.placement, rp_uuid)

    def cut_short(self, what: str) -> GuestError:
        """Why a work on an instance is at an end that no run of the agent is at any more.

        :param what: what was done with the instance.
        """
        return GuestError(f"the agent of {self.host} was stopped, or lost its database, while it {what} the instance")

    def burned_words(self, instance_uuid: str) -> str:
        """What ends a sentence, and names what the instance leaves burned; nothing, if it is nothing."""
        addresses = [each.address for each in self.tracker.providers_of(instance_uuid) if each.burned]
        return f"; {', '.join(addresses)} stays burned" if addresses else ""

    def notify(self, instance: InstanceRecord, action: str, given: Iterable[GivenFunction] = (), **more: Any) -> None:
        """Tell listeners; ``instance.<action>``.

        :param more: of :func:`instance_action`; it counts instead of what the row says.
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
        """End *task* with a fault, and tell listeners; nothing of that, if the row has moved on.

        :param action: as listeners know it: ``instance.<action>.error``.
        :param what: in words for users; why, administrators are told.
        :param burned: :meth:`burned_words`, for administrators: the rest of the world need not know a host's addresses.
        :param values: what else is written to the row.
        """
        LOG.warning("Instance %s, %s on %s: %s%s", instance.uuid, task.value, self.host, error, burned)
        told = fault(error, self.ports.clock(), what)
        told["fault_details"] += burned
        failed = self.end(instance, task, task_state=None, **values, **told)
        if failed is not None:
            self.notify(failed, f"{action}.error", self.given(instance.uuid), fault=str(error))

    def given(self, instance_uuid: str) -> list[GivenFunction]:
        """What the instance has, for listeners."""
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
        # As an administrator: the requests are the instance's, whoever deletes it.
        admin = RequestContext.admin(context.request_id)
        self.conductor.arq_delete_for_instance(admin, instance_uuid)
        left = self._arqs_left(instance_uuid)
        if left:
            raise StateConflict(f"accelerator request {left[0]} of instance {instance_uuid} is not given back yet")

    def _arqs_left(self, instance_uuid: str) -> list[str]:
        with self.ports.db.read() as tx:
            return [each.uuid for each in arq_rows.of_instance(tx, instance_uuid)]


def fault(error: Exception, now: datetime, what: str) -> dict[str, Any]:
    """The columns that tell users what failed, and administrators why.

    :param what: in words for users.
    """
    code = error.code if isinstance(error, ApiError) else 500
    message = str(error) if isinstance(error, ApiError) else what
    return {"fault_code": code, "fault_message": message, "fault_details": str(error), "fault_at": now}
