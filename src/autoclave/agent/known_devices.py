"""The devices of a host as the database has them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoclave.db import attributes as attribute_rows
from autoclave.db import devices as device_rows
from autoclave.db import handles as handle_rows
from autoclave.db.devices import DeployableRecord, DeviceRecord
from autoclave.db.engine import Database
from autoclave.db.handles import HandleUse
from autoclave.placement.records import Provider
from autoclave.rules.device_lifecycle import must_be_reserved


@dataclass(frozen=True)
class KnownDevice:
    """A device with all that discovery compares.

    :param attributes: what discovery said of it the last time.
    """

    device: DeviceRecord
    deployable: DeployableRecord
    attributes: Mapping[str, str]
    handles: Sequence[HandleUse]

    def fingerprint(self, present: Provider | None) -> tuple[object, ...]:
        """All that decides whether its provider has to be looked at again.

        :param present: the provider as Placement has it.
        """
        return (
            present.generation if present else None,
            must_be_reserved(self.device.offer),
            self.device.release_pending,
            self.deployable.resource_class,
            self.deployable.num_accelerators,
            tuple(sorted(self.attributes.items())),
        )


def known_devices(db: Database, host: str) -> dict[str, KnownDevice]:
    """Every device of the host by its address: four statements, however many there are."""
    with db.read() as tx:
        devices = device_rows.list_all(tx, hostname=host)
        deployables = device_rows.deployables_of(tx, [device.id for device in devices])
        ids = [deployable.id for deployable in deployables]
        attributes = attribute_rows.discovered(tx, ids)
        handles = handle_rows.of_deployables(tx, ids)
    by_device = {deployable.device_id: deployable for deployable in deployables}
    return {
        device.pci_address: KnownDevice(device, own, attributes.get(own.id, {}), handles.get(own.id, ()))
        for device in devices
        for own in (by_device[device.id],)
    }
