"""What the guest of an instance is made of: its row, its functions, its accelerator requests and its disk."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoclave.db import arqs as arq_rows
from autoclave.db import images
from autoclave.db.arqs import ARQView
from autoclave.db.engine import Database
from autoclave.db.instances import InstanceRecord
from autoclave.db.pci import FunctionRecord
from autoclave.db.tables import AttachType
from autoclave.exceptions import GuestError
from autoclave.rules.device_lifecycle import ARQState
from autoclave.rules.flavor_image import DiskFormat, disk_format_of, firmware_of
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.resource_names import read
from autoclave.virt.disks import InstanceFiles
from autoclave.virt.guest import GuestSpec


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
