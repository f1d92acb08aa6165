"""Keep the devices that flavors ask for where those of device profiles are.

``pci_providers`` and ``pci_functions`` become rows of ``devices``, ``deployables``, ``attributes`` and
``attach_handles``. A device keeps the uuid of its provider, under which its history is stored. Its state follows from
the former columns:

- An instance has all its functions: ``allocated``.
- Burned, and no instance has it: ``spent``; if its release was pending: ``available``, with that release pending.
- Otherwise: ``available``.

Rows of device profiles get the reclaim policy that their type had: ``erase`` for drives, ``none`` for the others.

Services of the release before read the former tables, so none of them may run.
"""

import json
import uuid
from collections import defaultdict
from typing import Any

import sqlalchemy as sa
from alembic import op

from autoclave.db.migrations.steps import add_column, alter_table, moment, one_of
from autoclave.exceptions import InvalidConfiguration
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.resource_names import provider_name

revision = "0019_one_inventory"
down_revision = "0018_published_totals"

_STATES = ("available", "allocated", "pending_cleaning", "cleaning", "spent", "error")
_DRIVER = "pci_device_spec"


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(create_constraint=False), nullable=False, server_default="0")


def _table(name: str, *columns: str) -> sa.TableClause:
    return sa.table(name, *map(sa.column, columns))


_PROVIDERS = _table(
    "pci_providers",
    *("id", "uuid", "hostname", "address", "serial", "resource_class", "traits", "total", "one_time_use", "burned"),
    *("burn_confirmed", "burned_at", "burned_for", "release_pending", "waiting_for", "outdated", "unreadable_reason"),
    *("withheld", "state_version", "created_at", "updated_at"),
)
_FUNCTIONS = _table(
    "pci_functions",
    *("provider_id", "address", "dev_type", "vendor_id", "product_id", "managed", "instance_uuid", "missing"),
    *("created_at", "updated_at"),
)
_DEVICES = _table(
    "devices",
    *("id", "uuid", "type", "vendor", "model", "hostname", "requested_by", "reclaim", "status", "device_state"),
    *("pci_address", "serial", "state_version", "state_reason", "release_pending", "release_number", "missing"),
    *("unreadable_reason", "outdated", "waiting_for", "withheld", "burned_at", "burned_for", "burn_confirmed"),
    *("created_at", "updated_at"),
)
_DEPLOYABLES = _table(
    "deployables",
    *("id", "uuid", "name", "num_accelerators", "device_id", "rp_uuid", "resource_class", "driver_name"),
    "created_at",
)
_ATTRIBUTES = _table("attributes", "uuid", "deployable_id", "key", "value", "created_at")
_HANDLES = _table(
    "attach_handles",
    *("uuid", "deployable_id", "attach_type", "attach_info", "identity", "instance_uuid", "missing", "created_at"),
    "updated_at",
)

Row = sa.Row[Any]


def upgrade() -> None:
    # Alembic commits each change of a table on MariaDB, so refuse before the first one.
    moving = _read() if sa.inspect(op.get_bind()).has_table("pci_providers") else []
    _require_slots(moving)
    _alter()
    for provider, functions in moving:
        if not _is_moved(provider):
            _move(provider, functions)
    for table in ("pci_functions", "pci_providers"):
        if sa.inspect(op.get_bind()).has_table(table):
            op.drop_table(table)


def _read() -> list[tuple[Row, list[Row]]]:
    connection = op.get_bind()
    functions: defaultdict[int, list[Row]] = defaultdict(list)
    if sa.inspect(connection).has_table("pci_functions"):
        for row in connection.execute(sa.select(_FUNCTIONS).order_by(_FUNCTIONS.c.address)).all():
            functions[row.provider_id].append(row)
    providers = connection.execute(sa.select(_PROVIDERS).order_by(_PROVIDERS.c.id)).all()
    return [(row, functions[row.id]) for row in providers]


def _require_slots(moving: list[tuple[Row, list[Row]]]) -> None:
    """Require that no slot has a device of both kinds, of which one would be lost.

    :raises InvalidConfiguration: a slot has both.
    """
    known = {
        (row.hostname, row.pci_address): row.uuid
        for row in op.get_bind().execute(sa.select(_DEVICES.c.hostname, _DEVICES.c.pci_address, _DEVICES.c.uuid))
    }
    both = [row for row, _ in moving if known.get((row.hostname, row.address), row.uuid) != row.uuid]
    if both:
        slots = ", ".join(f"{row.hostname}/{row.address}" for row in both)
        raise InvalidConfiguration(
            f"these slots have a device of a driver and a function of [pci] device_spec on record: {slots}. Start the "
            "release before, run `autoclave device forget` or `autoclave burned release` for one of each, and let the "
            "agent of the host run once; then run 'autoclave db sync' again",
            option="[database] connection",
        )


def _alter() -> None:
    drive, other = "erase", "none"
    add_column("devices", sa.Column("reclaim", sa.String(32)))
    policy = sa.case((_DEVICES.c.type == "NVME", drive), else_=other)
    op.get_bind().execute(_DEVICES.update().where(_DEVICES.c.reclaim.is_(None)).values(reclaim=policy))
    with alter_table("devices") as table:
        table.check("device_state", one_of("device_state", _STATES))
        table.add(sa.Column("requested_by", sa.String(32), nullable=False, server_default="profile"))
        table.check("requested_by", one_of("requested_by", ("profile", "flavor")))
        table.forbid_null("reclaim", sa.String(32))
        table.check("reclaim", one_of("reclaim", ("erase", "hold", "none")))
        table.add(_flag("outdated"), sa.Column("waiting_for", sa.Text), _flag("withheld"))
        table.add(sa.Column("burned_at", moment()), sa.Column("burned_for", sa.String(36)), _flag("burn_confirmed"))
        table.index("burned_for")
    # They were reserved for that alone, or are reserved for more; either way, Autoclave lowers it.
    doubted = sa.and_(_DEVICES.c.unreadable_reason.is_not(None), _DEVICES.c.device_state == "available")
    op.get_bind().execute(_DEVICES.update().where(doubted, _DEVICES.c.requested_by == "profile").values(withheld=True))
    with alter_table("attach_handles") as table:
        table.add(sa.Column("instance_uuid", sa.String(36)), _flag("missing"))
        table.index("instance_uuid")


def _is_moved(provider: Row) -> bool:
    return op.get_bind().scalar(sa.select(_DEVICES.c.id).where(_DEVICES.c.uuid == provider.uuid)) is not None


def _move(provider: Row, functions: list[Row]) -> None:
    # On MariaDB, the rows of one provider are committed together with the next change of a table.
    connection = op.get_bind()
    claimed = [each for each in functions if each.instance_uuid is not None]
    state = _state(provider, claimed, functions)
    released = state == "available" and bool(provider.release_pending)
    burned = bool(provider.burned)
    first = functions[0] if functions else None
    connection.execute(
        _DEVICES.insert().values(
            uuid=provider.uuid,
            type="PCI",
            vendor=first.vendor_id if first else "0000",
            model=first.product_id if first else "0000",
            hostname=provider.hostname,
            requested_by="flavor",
            reclaim="hold" if provider.one_time_use else "none",
            status="enabled",
            device_state=state,
            pci_address=provider.address,
            serial=provider.serial,
            state_version=provider.state_version,
            state_reason="it was burned before the upgrade" if state == "spent" else None,
            release_pending=released,
            release_number=1 if released else 0,
            missing=bool(functions) and all(each.missing for each in functions),
            unreadable_reason=provider.unreadable_reason,
            outdated=provider.outdated,
            waiting_for=provider.waiting_for,
            withheld=provider.withheld,
            burned_at=(provider.burned_at or provider.created_at) if burned else None,
            burned_for=provider.burned_for if burned else None,
            burn_confirmed=burned and bool(provider.burn_confirmed),
            created_at=provider.created_at,
            updated_at=provider.updated_at,
        )
    )
    device_id = connection.scalar(sa.select(_DEVICES.c.id).where(_DEVICES.c.uuid == provider.uuid))
    connection.execute(
        _DEPLOYABLES.insert().values(
            uuid=str(uuid.uuid4()),
            name=provider_name(provider.hostname, PCIAddress.parse(provider.address)),
            num_accelerators=provider.total,
            device_id=device_id,
            rp_uuid=provider.uuid,
            resource_class=provider.resource_class,
            driver_name=_DRIVER,
            created_at=provider.created_at,
        )
    )
    deployable_id = connection.scalar(sa.select(_DEPLOYABLES.c.id).where(_DEPLOYABLES.c.rp_uuid == provider.uuid))
    known = {"rc": provider.resource_class}
    known |= {f"trait{number}": trait for number, trait in enumerate(sorted(json.loads(provider.traits)))}
    for key, value in known.items():
        connection.execute(
            _ATTRIBUTES.insert().values(
                uuid=str(uuid.uuid4()),
                deployable_id=deployable_id,
                key=key,
                value=value,
                created_at=provider.created_at,
            )
        )
    for each in functions:
        info = {
            **PCIAddress.parse(each.address).as_attach_info(),
            "managed": bool(each.managed),
            "dev_type": each.dev_type,
            "vendor_id": each.vendor_id,
            "product_id": each.product_id,
        }
        connection.execute(
            _HANDLES.insert().values(
                uuid=str(uuid.uuid4()),
                deployable_id=deployable_id,
                attach_type="PCI",
                attach_info=json.dumps(info, sort_keys=True),
                identity=each.address,
                instance_uuid=each.instance_uuid,
                missing=each.missing,
                created_at=each.created_at,
                updated_at=each.updated_at,
            )
        )


def _state(provider: Row, claimed: list[Row], functions: list[Row]) -> str:
    if provider.burned and not claimed:
        return "available" if provider.release_pending else "spent"
    return "allocated" if functions and len(claimed) == len(functions) else "available"
