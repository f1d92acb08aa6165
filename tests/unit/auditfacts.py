"""Facts about instances and what they hold, for tests of what an audit makes of them."""

from typing import Any

from autoclave.rules.audit.instances import Part, of_consumers, of_functions, of_instance, of_lent_guests, of_unknown
from autoclave.rules.audit.model import Finding, Guest, Instance, Lent, Root
from autoclave.rules.device_lifecycle import DeviceState, Offer, Reserving
from autoclave.rules.reclaim import Reclaim
from autoclave.rules.resource_names import CONSUMER_TYPE

RC = "CUSTOM_PCI_10DE_25B6"
ROOT = Root("root", "host-1")
HOST_HAS = {"VCPU": 2, "MEMORY_MB": 512}
OPEN = Offer(DeviceState.AVAILABLE, maintaining=False, held=False, excluded=False, missing=False, unreadable=False)


def instance(**values: Any) -> Instance:
    """One that runs on host-1, with two processors and 512 MiB."""
    known: dict[str, Any] = {
        "uuid": "inst",
        "host": "host-1",
        "version": (1, 0),
        "settled": True,
        "launched": True,
        "asked": HOST_HAS,
        "project_id": "project",
        "user_id": "user",
    }
    return Instance(**{**known, **values})


def card(reclaim: Reclaim = Reclaim.NONE, **claims: str) -> Lent:
    """A provider of two functions; *claims*: who has which, by the number of the function."""
    given = {f"0000:81:00.{number.removeprefix('fn')}": uuid for number, uuid in claims.items()}
    functions = frozenset({"0000:81:00.0", "0000:81:00.1"})
    taken = given and (reclaim is Reclaim.HOLD or len(given) == len(functions))
    state = DeviceState.ALLOCATED if taken else DeviceState.AVAILABLE
    offer = OPEN._replace(device_state=state, lent=reclaim is Reclaim.NONE)
    reserving = Reserving(offer, confirmed=False, release_pending=False, withheld=False)
    place = ("card", "dev", "host-1", "0000:81:00.0", (1, 0))
    return Lent(*place, reserving, reclaim, RC, 2, functions, given)


def part(*lent: Lent, root: Root | None = ROOT) -> Part:
    """What there is of host-1."""
    return Part("host-1", root, lent)


def every_finding() -> list[Finding]:
    """At least one of each kind about instances."""
    moved = instance(host="host-2")
    return [
        *of_instance(part(), instance(), {}),
        *of_instance(part(card(Reclaim.HOLD, fn0="inst")), instance(), {"root": HOST_HAS}),
        *of_instance(part(card()), instance(), {"root": HOST_HAS, "card": {RC: 1}}),
        *of_functions(card(fn0="gone"), {}),
        *of_lent_guests(card(), {"0000:81:00.0": [Guest("web", "web-1", True)]}),
        *of_consumers(part(), {"inst": {"root": HOST_HAS}}, {"inst": moved}),
        of_unknown(part(), "gone", {"root": HOST_HAS}, CONSUMER_TYPE),
        of_unknown(part(), "foreign", {"root": HOST_HAS}, "unknown"),
    ]
