"""Read the database for an audit: in one consistent snapshot, with a constant number of statements."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from functools import cached_property

from autoclave.db import agents as agent_rows
from autoclave.db import arqs as arq_rows
from autoclave.db import attributes as attribute_rows
from autoclave.db import devices as device_rows
from autoclave.db import history, pci
from autoclave.db import hosts as compute_hosts
from autoclave.db import instances as instance_rows
from autoclave.db.arqs import ARQRecord
from autoclave.db.devices import DeployableRecord, DeviceRecord
from autoclave.db.engine import Database
from autoclave.db.instances import InstanceRecord
from autoclave.db.pci import ProviderRecord
from autoclave.exceptions import BadRequest
from autoclave.placement.provider_tree import whole_record
from autoclave.rules.audit.instances import Amounts
from autoclave.rules.audit.model import Agent, Drive, Hold, Instance, Lent, Root, Row, Stock, Wanted
from autoclave.rules.device_lifecycle import ARQState
from autoclave.rules.flavor_image import Flavor
from autoclave.rules.instance_states import UNSETTLED
from autoclave.rules.resource_names import OWNER_CYBORG
from autoclave.rules.resource_request import unnumbered_resources


@dataclass(frozen=True)
class Records:
    """Hold the contents of the database.

    :param rows: all devices, by uuid.
    :param lent: all providers of PCI functions for flavors, by uuid.
    :param agents: agents of the hosts that have devices or such providers.
    :param loose: requests bound to no device, each with the host that it names.
    :param instances: all instances, by uuid.
    :param roots: root providers of the hosts that run instances.
    :param asking: instances named by accelerator requests, including those of another service.
    :param named_hosts: all hosts on record, including those that have only an agent.
    """

    rows: Mapping[str, Row]
    lent: Mapping[str, Lent]
    agents: tuple[Agent, ...]
    loose: tuple[tuple[str, Hold], ...]
    instances: Mapping[str, Instance]
    roots: tuple[Root, ...]
    asking: frozenset[str]
    named_hosts: frozenset[str]

    @property
    def hosts(self) -> list[str]:
        """Return the hosts that have devices."""
        return sorted({row.host for row in self.rows.values()})

    def of_host(self, host: str, held: Mapping[str, Amounts]) -> dict[str, Amounts]:
        """Return those of *held*, by provider, that belong to no other host on record."""
        return {uuid: amounts for uuid, amounts in held.items() if self._homes.get(uuid, host) == host}

    @cached_property
    def _homes(self) -> Mapping[str, str]:
        return {root.uuid: root.host for root in self.roots} | {each.uuid: each.host for each in self.lent.values()}

    @cached_property
    def by_host(self) -> Mapping[str, Sequence[Instance]]:
        """Return the instances on each host that has any."""
        found: defaultdict[str, list[Instance]] = defaultdict(list)
        for each in self.instances.values():
            if each.host is not None:
                found[each.host].append(each)
        return found


def read(db: Database, now: datetime) -> Records:
    """Read the database.

    :param now: time at which leases and the silence of agents are judged.
    :raises DatabaseUnavailable: the database does not answer.
    """
    with db.read() as tx:
        devices = [device for device in device_rows.list_all(tx) if not device.is_function]
        deployables = device_rows.deployables_of(tx)
        attributes = attribute_rows.discovered(tx, None)
        arqs = arq_rows.active(tx)
        dirty = history.among(tx, None)
        providers, owners = pci.providers(tx), pci.owners(tx)
        instances = instance_rows.list_for(tx)
        roots = tuple(Root(each.rp_uuid, each.hostname) for each in compute_hosts.list_all(tx))
        asking = arq_rows.named_instances(tx)
        seen = {agent.hostname: agent.last_seen for agent in agent_rows.list_all(tx)}
    lent_ids = {each.id for each in providers}
    wanted = _wanted((each for each in deployables if each.device_id not in lent_ids), attributes)
    holds, loose = _holds(arqs, {each.rp_uuid: each.device_id for each in deployables}, now)
    claims = {number: frozenset(each for each in own.values() if each is not None) for number, own in owners.items()}
    rows = {
        d.uuid: _row(d, tuple(wanted[d.id]), tuple(holds[d.id]), claims.get(d.id, frozenset()), dirty) for d in devices
    }
    silent = {host: max(0.0, (now - at).total_seconds()) for host, at in seen.items()}
    # A host without an agent and without present devices was removed.
    on_record = {device.hostname for device in devices} | {each.hostname for each in providers}
    present = {device.hostname for device in devices if not device.missing}
    hosts = sorted(present | (on_record & seen.keys()))
    lent = {each.uuid: _lent(each, owners.get(each.id, {})) for each in providers}
    known = {each.uuid: _instance(each) for each in instances}
    told = tuple(Agent(host, silent.get(host)) for host in hosts)
    named = frozenset({*hosts, *seen, *(root.host for root in roots), *(host for host, _ in loose)})
    return Records(rows, lent, told, tuple(loose), known, roots, asking, named)


def _wanted(
    deployables: Iterable[DeployableRecord], attributes: Mapping[int, Mapping[str, str]]
) -> defaultdict[int, list[Wanted]]:
    found: defaultdict[int, list[Wanted]] = defaultdict(list)
    for each in deployables:
        own = attributes.get(each.id, {})
        traits = frozenset(value for key, value in own.items() if key.startswith("trait"))
        whole = Stock(*astuple(whole_record(each.num_accelerators, 0)))
        wanted = Wanted(each.rp_uuid, each.name, each.resource_class, traits | {OWNER_CYBORG}, whole)
        found[each.device_id].append(wanted)
    return found


def _holds(
    arqs: Iterable[ARQRecord], devices: Mapping[str, int], now: datetime
) -> tuple[defaultdict[int, list[Hold]], list[tuple[str, Hold]]]:
    """Return the requests of each device, and those in Bound without a device."""
    found: defaultdict[int, list[Hold]] = defaultdict(list)
    loose = []
    for arq in arqs:
        over = (now - arq.lease_expires_at).total_seconds() if arq.lease_expires_at else 0.0
        hold = Hold(arq.uuid, arq.state, arq.instance_uuid, max(0.0, over), arq.device_id is not None)
        named = devices.get(arq.device_rp_uuid or "")
        if arq.device_id is not None:
            found[arq.device_id].append(hold)
        elif arq.state is ARQState.BOUND:
            loose.append((arq.hostname or "", hold))
        elif named is not None:
            found[named].append(hold)
    return found, loose


def _row(
    device: DeviceRecord,
    wanted: tuple[Wanted, ...],
    holds: tuple[Hold, ...],
    claimed_by: frozenset[str],
    dirty: set[Drive],
) -> Row:
    # Devices other than drives may share a serial number, so it identifies none of them.
    known, seen = (device.serial, device.found_serial) if device.is_drive else (None, None)
    drive = None if known is None else (known, device.drive_model or "")
    found = None if seen is None else (seen, device.found_drive_model or "")
    return Row(
        uuid=device.uuid,
        host=device.hostname,
        address=device.pci_address,
        version=(device.state_version, device.release_number),
        offer=device.offer,
        cleaned=device.supports_cleaning,
        owes_offer=device.release_pending,
        drive=drive,
        found=found,
        known_dirty=drive in dirty,
        rewritten=device.rewritten,
        reasons={
            "state": device.state_reason,
            "held": device.hold_reason,
            "excluded": device.excluded_reason,
            "unreadable": device.unreadable_reason,
        },
        holds=holds,
        wanted=wanted,
        claimed_by=claimed_by,
    )


def _lent(provider: ProviderRecord, owners: Mapping[str, str | None]) -> Lent:
    claims = {address: owner for address, owner in owners.items() if owner is not None}
    return Lent(
        uuid=provider.uuid,
        device=provider.device.uuid,
        host=provider.hostname,
        address=provider.address,
        version=(provider.device.state_version, provider.device.release_number),
        reserving=provider.device.reserving,
        reclaim=provider.device.reclaim,
        resource_class=provider.resource_class,
        total=provider.total,
        functions=frozenset(owners),
        claims=claims,
        unreadable=provider.device.unreadable_reason,
    )


def _instance(record: InstanceRecord) -> Instance:
    try:
        asked = unnumbered_resources(Flavor.from_snapshot(record.flavor))
    except BadRequest:
        asked = {}  # An older release has accepted this flavor: its requests are unknown, and not compared.
    return Instance(
        uuid=record.uuid,
        host=record.host,
        version=(record.state_version, 0),
        settled=record.task_state not in UNSETTLED,
        launched=record.launched_at is not None,
        asked=asked,
        project_id=record.project_id,
        user_id=record.user_id,
    )
