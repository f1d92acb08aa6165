"""What PCI functions instances have, whichever way they got them, for those who show it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.compute_tables import pci_functions, pci_providers
from autoclave.db.tables import AttachType, arqs, attach_handles, deployables, devices
from autoclave.rules.device_lifecycle import ARQState
from autoclave.rules.resource_names import read


@dataclass(frozen=True)
class Hostdev:
    """A PCI function of a host that an instance has.

    ``arq_uuid`` is the accelerator request that it came by; None: a claim of the flavor's. ``burned``: it is
    given to nobody else before the operator says so. ``managed``: whether libvirt manages it; None: that cannot
    be read.
    """

    instance_uuid: str
    address: str
    rp_uuid: str
    resource_class: str
    managed: bool | None
    one_time_use: bool
    burned: bool
    arq_uuid: str | None


def of_instances(tx: Connection, instance_uuids: Collection[str]) -> dict[str, list[Hostdev]]:
    """What each of *instance_uuids* has, in order of the addresses; nothing is said of one that has nothing."""
    found = [*_claimed(tx, instance_uuids), *_bound(tx, instance_uuids)]
    found.sort(key=attrgetter("instance_uuid", "address"))
    return {uuid: list(devices_of) for uuid, devices_of in groupby(found, attrgetter("instance_uuid"))}


def _claimed(tx: Connection, instance_uuids: Collection[str]) -> list[Hostdev]:
    query = (
        sa.select(
            pci_functions.c.instance_uuid,
            pci_functions.c.address,
            pci_providers.c.uuid,
            pci_providers.c.resource_class,
            pci_functions.c.managed,
            pci_providers.c.one_time_use,
            pci_providers.c.burned,
        )
        .join(pci_providers, pci_providers.c.id == pci_functions.c.provider_id)
        .where(pci_functions.c.instance_uuid.in_(instance_uuids))
    )
    return [Hostdev(*row, arq_uuid=None) for row in tx.execute(query)]


def _bound(tx: Connection, instance_uuids: Collection[str]) -> list[Hostdev]:
    query = (
        sa.select(
            arqs.c.instance_uuid,
            devices.c.pci_address,
            deployables.c.rp_uuid,
            deployables.c.resource_class,
            attach_handles.c.attach_info,
            arqs.c.uuid,
        )
        .join(devices, devices.c.id == arqs.c.device_id)
        .join(attach_handles, attach_handles.c.id == arqs.c.attach_handle_id)
        .join(deployables, deployables.c.id == attach_handles.c.deployable_id)
        .where(
            arqs.c.instance_uuid.in_(instance_uuids),
            arqs.c.state.in_([ARQState.BOUND, ARQState.DELETING]),
            attach_handles.c.attach_type == AttachType.PCI,
        )
    )
    found = []
    for instance_uuid, address, rp_uuid, resource_class, stored, arq_uuid in tx.execute(query):
        attaching = read(stored)
        found.append(
            Hostdev(
                instance_uuid,
                _address(attaching.where, address),
                rp_uuid,
                resource_class,
                managed=attaching.managed,
                one_time_use=False,
                burned=False,
                arq_uuid=arq_uuid,
            )
        )
    return found


def _address(info: Mapping[str, str], slot: str) -> str:
    """The handle's own address: a virtual function is not where its device is."""
    parts = [info.get(name) for name in ("domain", "bus", "device", "function")]
    return slot if None in parts else "{}:{}:{}.{}".format(*parts)
