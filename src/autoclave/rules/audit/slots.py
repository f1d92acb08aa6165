"""What the database and the host say of one device."""

from collections.abc import Iterator, Sequence

from autoclave.rules.arq_states import ARQState
from autoclave.rules.audit.devices import about
from autoclave.rules.audit.facts import Guest, Row, Slot
from autoclave.rules.audit.kinds import Kind
from autoclave.rules.audit.model import Finding
from autoclave.rules.device_lifecycle import IDLE_STATES, DeviceState

_HOST_DRIVER = "nvme"


def of_slot(row: Row, slot: Slot) -> Iterator[Finding]:
    """The slot of a device. While a worker or a guest has it, little can be said."""
    if not slot.present:
        if row.in_slot and not row.offer.missing:
            yield about(Kind.SLOT_EMPTY, row, f"there is no PCI function {row.address}")
        return
    if not row.cleaned:
        return
    if row.offer.device_state in IDLE_STATES:
        yield from _drive(row, slot)
    if row.offer.device_state is DeviceState.AVAILABLE:
        yield from _others(row, slot)
    bound = [hold.instance for hold in row.holds if hold.state is ARQState.BOUND]
    if row.offer.device_state is DeviceState.ALLOCATED and bound and slot.driver == _HOST_DRIVER:
        yield about(Kind.GUEST_NOT_RUNNING, row, f"bound to instance {bound[0]}; the host's nvme driver has it")


def of_guests(row: Row, guests: Sequence[Guest]) -> Iterator[Finding]:
    """The guests that have been given the function of a device."""
    asking = {hold.instance for hold in row.holds}
    for guest in guests:
        if guest.uuid not in asking:
            runs = "runs" if guest.running else "is off"
            seen = f"domain {guest.name} ({guest.uuid}) has it and {runs}, and no active request of it does"
            yield about(Kind.GUEST_WITHOUT_REQUEST, row, seen, guest.uuid)


def _drive(row: Row, slot: Slot) -> Iterator[Finding]:
    if slot.drive is not None and row.drive is not None and slot.drive not in (row.drive, row.found):
        serial, model = slot.drive
        yield about(Kind.OTHER_DRIVE, row, f"in the slot is {model} {serial}, on record {row.drive[1]} {row.drive[0]}")


def _others(row: Row, slot: Slot) -> Iterator[Finding]:
    if slot.driver is None:
        yield about(Kind.NO_DRIVER, row, "available, and no kernel driver has it")
    elif slot.driver != _HOST_DRIVER:
        yield about(Kind.DRIVER_DIFFERS, row, f"available, and the driver {slot.driver} has it", slot.driver)
    if slot.users:
        yield about(Kind.USED_BY_HOST, row, f"available, and the host uses it: {'; '.join(slot.users)}")
    if slot.other_paths:
        yield about(Kind.SECOND_PATH, row, f"available, and also reached through {', '.join(slot.other_paths)}")
