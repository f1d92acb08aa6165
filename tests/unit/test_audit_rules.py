"""What an audit makes of facts: each kind of finding, and what is none."""

import string
from typing import Any

import pytest
from auditfacts import OPEN
from auditfacts import every_finding as instance_findings

from autoclave.rules.audit.devices import (
    loose_request,
    of_agents,
    of_drives,
    of_guests,
    of_provider,
    of_row,
    of_slot,
    taken_name,
    unproved,
    without_device,
)
from autoclave.rules.audit.instances import of_doubt, of_lent, uncleaned
from autoclave.rules.audit.kinds import Fix, Kind, Severity
from autoclave.rules.audit.model import Agent, Finding, Found, Guest, Hold, Lent, Row, Slot, Stock, Wanted
from autoclave.rules.device_lifecycle import ARQState, DeviceState, Offer, Reserving
from autoclave.rules.reclaim import Reclaim
from autoclave.rules.resource_names import OWNER_CYBORG, split_provider_name

RC = "CUSTOM_NVME_144D_A808"
WHOLE = Stock(1, 0, 1, 1, 1, 1.0)
WANTED = Wanted("rp", "host-1_0000:41:00.0", RC, frozenset({OWNER_CYBORG, "HW_NVME_CES"}), WHOLE)
DRIVE = ("SER-A", "Model")
ERROR, CLEANING, SPENT = DeviceState.ERROR, DeviceState.CLEANING, DeviceState.SPENT
AVAILABLE, ALLOCATED = DeviceState.AVAILABLE, DeviceState.ALLOCATED


def row(state: DeviceState | None = AVAILABLE, *holds: Hold, **values: Any) -> Row:
    flags = {name: values.pop(name) for name in list(values) if name in Offer._fields}
    known: dict[str, Any] = {
        "uuid": "dev",
        "host": "host-1",
        "address": "0000:41:00.0",
        "version": (1, 0),
        "offer": OPEN._replace(device_state=state, **flags),
        "cleaned": True,
        "owes_offer": False,
        "drive": DRIVE,
        "found": None,
        "known_dirty": False,
        "reasons": {"state": None, "held": None, "excluded": None, "unreadable": None},
        "holds": holds,
        "wanted": (WANTED,),
    }
    return Row(**{**known, **values})


def found(reserved: int = 0, **values: Any) -> Found:
    known: dict[str, Any] = {
        "uuid": "rp",
        "name": WANTED.name,
        "parent": "root",
        "traits": WANTED.traits,
        "stocks": {RC: WHOLE._replace(reserved=reserved)},
        "consumers": {},
    }
    return Found(**{**known, **values})


def hold(state: ARQState = ARQState.BOUND, overdue: float = 0.0, *, linked: bool = True) -> Hold:
    return Hold("arq", state, "inst", overdue, linked)


def slot(driver: str | None = "nvme", **values: Any) -> Slot:
    return Slot(**{"present": True, "driver": driver, "drive": DRIVE, "users": (), "other_paths": (), **values})


HELD_BY_INSTANCE = {"inst": {RC: 1}}
NONE: set[Kind] = set()


@pytest.mark.parametrize(
    ("device", "provider", "kinds"),
    [
        (row(), found(), NONE),
        (row(), found(1), {Kind.RESERVED_BY_HAND}),
        (row(owes_offer=True), found(1), {Kind.DEBT_UNPAID}),
        (row(owes_offer=True, held=True), found(1), NONE),
        (row(ERROR), found(1), NONE),
        (row(ERROR), found(), {Kind.RESERVED_TOO_LOW}),
        (row(CLEANING), found(), {Kind.RESERVED_TOO_LOW}),
        (row(None), found(), {Kind.RESERVED_TOO_LOW}),
        (row(missing=True), found(), {Kind.RESERVED_TOO_LOW}),
        (row(maintaining=True), found(), {Kind.RESERVED_TOO_LOW}),
        (row(excluded=True), found(), {Kind.RESERVED_TOO_LOW}),
        (row(ALLOCATED, hold()), found(1, consumers=HELD_BY_INSTANCE), NONE),
        (row(ALLOCATED, hold()), found(0, consumers=HELD_BY_INSTANCE), {Kind.RESERVED_TOO_LOW}),
        # between the claim and the word to Placement, as long as the lease runs, and for that reason alone
        (row(ALLOCATED, hold(ARQState.BIND_STARTED)), found(0, consumers=HELD_BY_INSTANCE), NONE),
        (row(ALLOCATED, hold(ARQState.DELETING)), found(0, consumers=HELD_BY_INSTANCE), NONE),
        (row(ALLOCATED, hold(ARQState.BIND_STARTED, 1)), found(0, consumers=HELD_BY_INSTANCE), {Kind.RESERVED_TOO_LOW}),
        (
            row(ALLOCATED, hold(ARQState.BIND_STARTED), held=True),
            found(0, consumers=HELD_BY_INSTANCE),
            {Kind.RESERVED_TOO_LOW},
        ),
        (row(), None, {Kind.PROVIDER_MISSING}),
        (row(), found(traits=WANTED.traits - {OWNER_CYBORG}), {Kind.PROVIDER_NOT_OURS}),
        (row(), found(traits=WANTED.traits | {"CUSTOM_X"}), NONE),
        (row(), found(traits=WANTED.traits | {"HW_NVME_BES"}), {Kind.TRAITS_DIFFER}),
        (row(), found(name=WANTED.name.lower()), NONE),
        (row(), found(name="other"), {Kind.PROVIDER_RENAMED}),
        (row(), found(parent="other"), {Kind.PROVIDER_MOVED}),
        (row(), found(parent=None), {Kind.PROVIDER_MOVED}),
        (row(), found(stocks={}), {Kind.INVENTORY_MISSING}),
        (row(), found(stocks={RC: WHOLE, "CUSTOM_X": WHOLE}), {Kind.FOREIGN_INVENTORY}),
        (row(), found(stocks={"CUSTOM_X": WHOLE}), {Kind.FOREIGN_INVENTORY, Kind.INVENTORY_MISSING}),
        (row(), found(stocks={RC: WHOLE._replace(allocation_ratio=2.0)}), {Kind.INVENTORY_DIFFERS}),
        (row(), found(consumers={"x": {RC: 1}}), {Kind.ALLOCATION_WITHOUT_REQUEST}),
        (row(AVAILABLE, hold(ARQState.BIND_STARTED, linked=False)), found(consumers=HELD_BY_INSTANCE), NONE),
        (row(ALLOCATED, hold()), found(1), {Kind.REQUEST_WITHOUT_ALLOCATION}),
        (
            row(ALLOCATED, hold()),
            found(1, consumers={**HELD_BY_INSTANCE, "x": {RC: 1}}),
            {Kind.OVERUSED, Kind.ALLOCATION_WITHOUT_REQUEST},
        ),
    ],
)
def test_a_row_and_its_provider_agree_or_it_is_named_how_they_do_not(
    device: Row, provider: Found | None, kinds: set[Kind]
) -> None:
    assert {each.kind for each in of_provider(device, WANTED, provider, "root")} == kinds


def test_a_root_that_is_not_there_makes_no_provider_a_moved_one() -> None:
    assert list(of_provider(row(), WANTED, found(), None)) == []


def test_a_device_with_several_handles_is_offered_by_as_many_units_and_reserved_whole() -> None:
    wanted = WANTED._replace(whole=Stock(4, 0, 1, 4, 1, 1.0))
    device = row(AVAILABLE, hold(), cleaned=False, wanted=(wanted,))
    stocks = {RC: wanted.whole}
    assert list(of_row(device)) == []
    assert list(of_provider(device, wanted, found(stocks=stocks, consumers=HELD_BY_INSTANCE), "root")) == []
    withheld = row(ERROR, cleaned=False, wanted=(wanted,))
    low = found(stocks={RC: wanted.whole._replace(reserved=3)})
    assert [each.kind for each in of_provider(withheld, wanted, low, "root")] == [Kind.RESERVED_TOO_LOW]


@pytest.mark.parametrize(
    ("device", "kinds"),
    [
        (row(), NONE),
        (row(None), {Kind.STATE_UNKNOWN}),
        (row(ALLOCATED), {Kind.ALLOCATED_WITHOUT_REQUEST}),
        (row(ALLOCATED, hold(linked=False)), {Kind.ALLOCATED_WITHOUT_REQUEST}),
        (row(ALLOCATED, hold()), NONE),
        (row(AVAILABLE, hold()), {Kind.REQUEST_WITHOUT_DEVICE}),
        (row(AVAILABLE, hold(ARQState.BIND_STARTED, linked=False)), NONE),
        (row(ALLOCATED, hold(ARQState.BIND_STARTED, 30)), NONE),
        (row(ALLOCATED, hold(ARQState.BIND_STARTED, 61)), {Kind.LEASE_EXPIRED}),
        (row(known_dirty=True), {Kind.KNOWN_DIRTY}),
        (row(rewritten=True), {Kind.PROVIDER_REWRITTEN}),
        (row(ERROR, known_dirty=True), {Kind.DEVICE_IN_ERROR}),
        (row(held=True), {Kind.DEVICE_HELD}),
        (row(missing=True), {Kind.DEVICE_MISSING}),
        (row(excluded=True), {Kind.DEVICE_EXCLUDED}),
        (row(unreadable=True), {Kind.DEVICE_UNREADABLE}),
        (row(maintaining=True), {Kind.DEVICE_IN_MAINTENANCE}),
    ],
)
def test_a_row_agrees_with_itself_or_it_is_named_how_it_does_not(device: Row, kinds: set[Kind]) -> None:
    assert {each.kind for each in of_row(device)} == kinds


@pytest.mark.parametrize(
    ("device", "seen", "kinds"),
    [
        (row(), slot(), NONE),
        (row(), slot(present=False), {Kind.SLOT_EMPTY}),
        (row(missing=True), slot(present=False), NONE),
        (row(wanted=(WANTED._replace(name="host-1_FakeDevice"),)), slot(present=False), NONE),
        (row(), slot("vfio-pci", drive=None), {Kind.DRIVER_DIFFERS}),
        (row(), slot(None, drive=None), {Kind.NO_DRIVER}),
        (row(cleaned=False), slot("vfio-pci", drive=None), NONE),
        (row(), slot(drive=("SER-B", "Model")), {Kind.OTHER_DRIVE}),
        (row(ERROR), slot(drive=("SER-B", "Model")), {Kind.OTHER_DRIVE}),
        (row(ERROR, found=("SER-B", "Model")), slot(drive=("SER-B", "Model")), NONE),
        (row(drive=None), slot(), NONE),
        (row(CLEANING), slot(drive=("SER-B", "Model")), NONE),
        (row(), slot(users=("mounted",)), {Kind.USED_BY_HOST}),
        (row(), slot(other_paths=("nvme9",)), {Kind.SECOND_PATH}),
        (row(ERROR), slot(other_paths=("nvme9",), users=("mounted",)), NONE),
        (row(ALLOCATED, hold()), slot(), {Kind.GUEST_NOT_RUNNING}),
        (row(ALLOCATED, hold()), slot("vfio-pci", drive=None), NONE),
    ],
)
def test_a_row_and_its_slot_agree_or_it_is_named_how_they_do_not(device: Row, seen: Slot, kinds: set[Kind]) -> None:
    assert {each.kind for each in of_slot(device, seen)} == kinds


def test_a_guest_is_expected_only_with_a_request() -> None:
    guest = Guest("inst", "web-1", running=False)
    assert list(of_guests(row(ALLOCATED, hold()), [guest])) == []
    [finding] = of_guests(row(ALLOCATED), [guest])
    assert (finding.kind, "is off" in finding.seen) == (Kind.GUEST_WITHOUT_REQUEST, True)


def test_a_drive_is_in_one_slot_unless_it_was_seen_to_leave_the_other() -> None:
    here, there = row(uuid="a"), row(uuid="b", host="host-2")
    assert {each.device for each in of_drives([here, there])} == {"a", "b"}
    assert list(of_drives([here, row(uuid="b", host="host-2", missing=True)])) == []
    assert list(of_drives([row(uuid="a", drive=None), row(uuid="b", drive=None)])) == []


def test_what_is_found_twice_is_the_same_only_at_the_same_version() -> None:
    [one], [other], [later] = (list(of_row(row(ALLOCATED, version=at))) for at in ((1, 0), (1, 0), (2, 0)))
    assert one.identity == other.identity != later.identity


def every_finding() -> dict[Kind, Finding]:
    """One of each kind, as the rules make them; those of the room around them excepted."""
    devices = [
        row(None),
        row(ALLOCATED),
        row(AVAILABLE, hold()),
        row(ALLOCATED, hold(ARQState.BIND_STARTED, 100)),
        row(known_dirty=True),
        row(rewritten=True),
        row(ERROR, held=True, missing=True, excluded=True, maintaining=True, unreadable=True),
    ]
    wrong = found(
        1,
        name="x",
        parent="x",
        traits=frozenset(),
        stocks={RC: WHOLE._replace(reserved=1, allocation_ratio=2.0), "CUSTOM_X": WHOLE},
        consumers={"x": {RC: 2}},
    )
    made = [finding for device in devices for finding in of_row(device)]
    made += of_drives([row(uuid="a"), row(uuid="b")])
    made += of_agents([Agent("host-1", None)])
    made += [without_device(found(), "host-1"), taken_name(row(), WANTED, "other"), loose_request("host-1", hold())]
    for device in (row(ALLOCATED, hold()), row(), row(owes_offer=True)):
        for provider in (None, wrong, found(stocks={}), found()):
            made += of_provider(device, WANTED, provider, "root")
    for seen in (
        slot(present=False),
        slot("vfio-pci", drive=None),
        slot(None, drive=None),
        slot(drive=("B", ""), users=("x",), other_paths=("y",)),
    ):
        made += of_slot(row(), seen)
    made += of_slot(row(ALLOCATED, hold()), slot())
    made += of_guests(row(), [Guest("x", "x", running=True)])
    made += of_doubt(lent()._replace(unreadable="no power"))
    made += [
        *of_lent(lent(), found(1)),
        *of_lent(lent(SPENT, confirmed=True), found()),
        *uncleaned([lent(reclaim=NOTHING)]),
    ]
    made += instance_findings()
    return {each.kind: each for each in made}


OF_THE_ROOM = {
    Kind.SCHEMA_BEHIND,
    Kind.IN_MOTION,
    Kind.PLACEMENT_UNREADABLE,
    Kind.ROOT_MISSING,
    Kind.HOST_UNREADABLE,
    Kind.LIBVIRT_NOT_LOOKED_AT,
    Kind.LIBVIRT_UNREADABLE,
}


HELD, ERASED, NOTHING = Reclaim.HOLD, Reclaim.ERASE, Reclaim.NONE


def lent(state: DeviceState = AVAILABLE, reclaim: Reclaim = HELD, **values: bool) -> Lent:
    """A device that flavors ask for, with one function; *values* are those that decide its ``reserved``."""
    flags = {name: values.pop(name) for name in list(values) if name in Offer._fields}
    offer = OPEN._replace(device_state=state, lent=reclaim is NOTHING, **flags)
    reserving = Reserving(offer, **{"confirmed": False, "release_pending": False, "withheld": False, **values})
    address = "0000:81:00.0"
    return Lent("rp", "dev", "host-1", address, (1, 0), reserving, reclaim, RC, 1, frozenset({address}), {})


TOO_LOW, ENDING = {Kind.RESERVED_TOO_LOW}, {Kind.RELEASE_UNFINISHED}


@pytest.mark.parametrize(
    ("device", "reserved", "kinds"),
    [
        (lent(), 0, set()),
        (lent(), 1, {Kind.FUNCTION_HELD}),
        (lent(unreadable=True), 0, TOO_LOW),
        (lent(outdated=True), 0, TOO_LOW),
        (lent(missing=True), 0, TOO_LOW),
        (lent(held=True), 0, TOO_LOW),
        (lent(unreadable=True, withheld=True), 1, set()),
        (lent(withheld=True), 1, ENDING),
        (lent(ALLOCATED), 1, set()),
        (lent(ALLOCATED), 0, TOO_LOW),
        (lent(ALLOCATED, confirmed=True), 0, TOO_LOW),
        (lent(SPENT), 1, set()),
        (lent(SPENT), 0, TOO_LOW),
        (lent(SPENT, confirmed=True), 1, set()),
        (lent(SPENT, confirmed=True), 0, ENDING),
        (lent(release_pending=True), 1, ENDING),
        (lent(ALLOCATED, release_pending=True), 0, TOO_LOW),
        (lent(ALLOCATED, NOTHING), 0, set()),
        (lent(ALLOCATED, NOTHING, unreadable=True), 0, TOO_LOW),
        (lent(ALLOCATED, ERASED), 0, TOO_LOW),
        (lent(CLEANING, ERASED), 0, TOO_LOW),
        (lent(ERROR, ERASED), 0, TOO_LOW),
    ],
)
def test_a_device_of_flavors_is_reserved_by_its_state(device: Lent, reserved: int, kinds: set[Kind]) -> None:
    assert {each.kind for each in of_lent(device, found(reserved))} == kinds


@pytest.mark.parametrize(
    ("device", "why"),
    [
        (lent(unreadable=True)._replace(unreadable="no power"), "it cannot be read: no power"),
        (lent(outdated=True), "its entry in [pci] device_spec changed"),
        (lent(held=True, maintaining=True), "it is held, maintaining"),
        (lent(ALLOCATED), "it is burned and in use"),
        (lent(SPENT), "it is burned and not yet seen idle"),
        (lent(CLEANING, ERASED), "it is cleaning"),
        (lent(ERROR, ERASED), "it is error"),
    ],
)
def test_a_device_reserved_too_low_is_told_with_its_reason(device: Lent, why: str) -> None:
    [finding] = of_lent(device, found())
    assert finding.seen == f"reserved=0 of 1, while {why}"


def test_a_burned_function_without_a_provider_or_an_inventory_is_not_offered_and_is_told() -> None:
    assert [each.kind for each in of_lent(lent(SPENT), None)] == [Kind.PROVIDER_MISSING]
    assert [each.kind for each in of_lent(lent(SPENT), found(stocks={}))] == [Kind.INVENTORY_MISSING]


def test_what_returns_uncleaned_is_named_once_for_each_host() -> None:
    plain = lent(reclaim=NOTHING)
    many = [plain._replace(address=f"0000:82:00.{number}") for number in range(8)]
    cleaned = [lent(reclaim=each)._replace(host="a") for each in (HELD, ERASED)]
    [one, two] = uncleaned([*many, plain, *cleaned, plain._replace(host="b")])
    assert (one.subject, two.subject, two.seen) == ("b", "host-1", two.seen)
    assert two.seen.startswith("0000:81:00.0, 0000:82:00.0, ")
    assert two.seen.endswith(" and 1 more")


def test_every_kind_can_be_found() -> None:
    assert set(every_finding()) | OF_THE_ROOM == set(Kind)


@pytest.mark.parametrize("finding", every_finding().values(), ids=lambda finding: finding.kind.label)
def test_a_remedy_names_all_that_it_is_about(finding: Finding) -> None:
    assert not list(filter(None, (name for _, name, _, _ in string.Formatter().parse(finding.remedy))))
    assert "None" not in finding.remedy
    assert "``" not in finding.remedy


def test_only_what_makes_a_device_less_available_is_done_and_only_where_a_promise_is_at_risk() -> None:
    assert {kind.fix for kind in Kind} == {None, *Fix}
    assert {kind.severity for kind in Kind if kind.fix} == {Severity.RISK}


@pytest.mark.parametrize(
    ("device", "proved"),
    [
        (row(), False),
        (row(held=True, missing=True), False),
        (row(cleaned=False), True),
        (row(ERROR), True),
        (row(CLEANING), True),
        (row(None), True),
        (row(ALLOCATED), False),
        (row(ALLOCATED, cleaned=False), False),
        (row(ALLOCATED, hold(ARQState.BIND_STARTED)), False),
        (row(ALLOCATED, hold(ARQState.DELETING)), False),
        (row(ALLOCATED, hold(linked=False)), False),
        (row(ALLOCATED, hold()), True),
        (row(ALLOCATED, hold(), hold(ARQState.DELETING), cleaned=False), True),
    ],
)
def test_a_restored_database_proves_little(device: Row, proved: bool) -> None:
    assert (unproved(device) is None) == proved


@pytest.mark.parametrize("name", ["host-1", "host-1_", "_0000:41:00.0", "host-1_fpga", ""])
def test_a_name_that_is_no_devices_is_nobodys(name: str) -> None:
    assert split_provider_name(name) is None


def test_a_providers_name_tells_host_and_slot() -> None:
    split = split_provider_name("my_host_0000:0A:00.0")
    assert split is not None
    assert (split[0], str(split[1])) == ("my_host", "0000:0a:00.0")


@pytest.mark.parametrize("kind", Kind)
def test_a_remedy_asks_no_operator_to_delete_requests(kind: Kind) -> None:
    """``DELETE`` of a bound request takes a service token: Keystone's administrators are answered 403."""
    assert "arq delete" not in kind.remedy
    assert "its request {about}" not in kind.remedy


def test_a_request_without_its_device_is_taken_back() -> None:
    [finding] = of_row(row(AVAILABLE, hold()))
    assert f"`autoclave device take-back {row().slot}`" in finding.remedy
    assert "take-back" not in loose_request("host-1", hold()).remedy, "it has no device to name"
