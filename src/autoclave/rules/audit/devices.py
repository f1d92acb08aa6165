"""What the database says by itself."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from autoclave.rules.arq_states import ARQState
from autoclave.rules.audit.facts import Agent, Drive, Hold, Row
from autoclave.rules.audit.kinds import Kind
from autoclave.rules.audit.model import Finding
from autoclave.rules.device_lifecycle import DeviceState

SILENCE = 300.0
"""Seconds after which an agent that was not seen is taken for dead: five periods of the default."""

SWEPT = 60.0
"""Seconds after its end by which a lease has been swept, if anybody sweeps."""

_LOOSE = (
    "See which device the guest has (`virsh dumpxml` on the host), and delete the instance: its service deletes the "
    "request. A request whose instance is gone keeps nothing from others."
)

UNFINISHED = frozenset({ARQState.BIND_STARTED, ARQState.DELETING})
"""States of a request that somebody works on."""


def about(kind: Kind, row: Row, seen: str, what: str = "", **names: str) -> Finding:
    """A finding about a device; *what* tells it from others of its kind."""
    known = {"slot": row.slot, "host": row.host, "address": row.address, "about": what, **names}
    return Finding(kind, row.slot, seen, kind.remedy.format(**known), row.uuid, what, row.version)


def of_row(row: Row) -> Iterator[Finding]:
    """One device."""
    offer, state = row.offer, row.offer.device_state
    linked = [hold for hold in row.holds if hold.linked]
    if state is None:
        yield about(Kind.STATE_UNKNOWN, row, "device_state is NULL")
    if state is DeviceState.ALLOCATED and not linked:
        yield about(Kind.ALLOCATED_WITHOUT_REQUEST, row, "allocated, and no active accelerator request has it")
    if state not in (None, DeviceState.ALLOCATED) and (row.cleaned or len(linked) >= row.handles):
        for hold in linked:
            yield about(
                Kind.REQUEST_WITHOUT_DEVICE, row, f"request {hold.arq} is {hold.state}, it is {state}", hold.arq
            )
    for hold in row.holds:
        if hold.state in UNFINISHED and hold.overdue > SWEPT:
            seen = f"request {hold.arq} is {hold.state}; its lease ended {hold.overdue:.0f} s ago"
            yield about(Kind.LEASE_EXPIRED, row, seen, hold.arq)
    if state is DeviceState.AVAILABLE and row.known_dirty and row.drive:
        yield about(Kind.KNOWN_DIRTY, row, f"available, and its drive {row.drive[0]} is in the ledger of dirty drives")
    if row.rewritten:
        yield about(Kind.PROVIDER_REWRITTEN, row, "another service has written its provider in Placement")
    if state is DeviceState.ERROR:
        yield about(Kind.DEVICE_IN_ERROR, row, row.reasons["state"] or "error")
    flags = (
        (offer.held, Kind.DEVICE_HELD, row.reasons["held"] or "held"),
        (offer.excluded, Kind.DEVICE_EXCLUDED, row.reasons["excluded"] or "excluded"),
        (offer.missing, Kind.DEVICE_MISSING, "missing"),
        (offer.unreadable, Kind.DEVICE_UNREADABLE, row.reasons["unreadable"] or "unreadable"),
        (offer.maintaining, Kind.DEVICE_IN_MAINTENANCE, "maintaining"),
    )
    for said, kind, seen in flags:
        if said:
            yield about(kind, row, seen)


def loose_request(host: str, hold: Hold) -> Finding:
    """A request that is bound to no device."""
    seen = f"request {hold.arq} of instance {hold.instance or '(none)'} is {hold.state}, and has no device"
    return Finding(Kind.REQUEST_WITHOUT_DEVICE, host, seen, _LOOSE, about=hold.arq)


def of_drives(rows: Iterable[Row]) -> Iterator[Finding]:
    """Drives that are on record in several slots, from where none was seen to leave."""
    slots: dict[Drive, list[Row]] = defaultdict(list)
    for row in rows:
        if row.drive is not None and not row.offer.missing:
            slots[row.drive].append(row)
    for (serial, _), found in slots.items():
        for row in found if len(found) > 1 else ():
            others = " and ".join(other.slot for other in found if other is not row)
            yield about(Kind.DRIVE_IN_TWO_ROWS, row, f"its drive {serial} is on record at {others} too")


def of_agents(agents: Sequence[Agent], patience: float = SILENCE) -> Iterator[Finding]:
    """Hosts that nobody serves.

    :param patience: seconds after which an agent that was not seen is taken for dead.
    """
    for agent in agents:
        if agent.silent is None or agent.silent > patience:
            seen = "never seen" if agent.silent is None else f"last seen {agent.silent:.0f} s ago"
            kind = Kind.AGENT_SILENT
            yield Finding(kind, agent.host, f"its agent was {seen}", kind.remedy.format(host=agent.host))
