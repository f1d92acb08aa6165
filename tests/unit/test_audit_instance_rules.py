"""What an audit makes of the rows of instances and of what Placement has allocated to them."""

from collections.abc import Mapping

import pytest
from auditfacts import HOST_HAS, RC, card, instance, part

from autoclave.rules.audit.instances import (
    Amounts,
    Part,
    by_consumer,
    lacking,
    of_consumers,
    of_functions,
    of_instance,
    of_lent_guests,
    of_unknown,
)
from autoclave.rules.audit.kinds import Kind
from autoclave.rules.audit.model import Guest, Instance
from autoclave.rules.reclaim import Reclaim
from autoclave.rules.resource_names import CONSUMER_TYPE

AT_HOME: Mapping[str, Amounts] = {"root": HOST_HAS}
WITH_CARD: Mapping[str, Amounts] = {"root": HOST_HAS, "card": {RC: 1}}
LOST, PROTECTED = Kind.INSTANCE_WITHOUT_ALLOCATION, Kind.FUNCTION_WITHOUT_ALLOCATION
IDLE, STRAY = Kind.ALLOCATION_WITHOUT_FUNCTION, Kind.ALLOCATION_WITHOUT_INSTANCE
NONE: list[Kind] = []
FUNCTION = "0000:81:00.0"


@pytest.mark.parametrize(
    ("of", "who", "held", "kinds"),
    [
        pytest.param(part(), instance(), AT_HOME, NONE, id="as-it-should-be"),
        pytest.param(part(), instance(), {}, [LOST], id="nothing"),
        pytest.param(part(), instance(), {"root": {"VCPU": 2, "MEMORY_MB": 511}}, [LOST], id="too-little"),
        pytest.param(part(), instance(), {"root": {"VCPU": 3, "MEMORY_MB": 512}}, NONE, id="more-than-asked"),
        pytest.param(part(), instance(), {"root": {"VCPU": 2}, "numa": {"MEMORY_MB": 512}}, NONE, id="of-another"),
        pytest.param(part(), instance(asked={"DISK_GB": 9}), {"root": {"DISK_GB": 8}}, [LOST], id="too-small-a-disk"),
        pytest.param(part(), instance(asked={"CUSTOM_X": 1}), {}, NONE, id="nothing-of-the-root"),
        pytest.param(part(), instance(settled=False), {}, NONE, id="in-the-making"),
        pytest.param(part(), instance(launched=False), {}, NONE, id="never-ran"),
        pytest.param(part(root=None), instance(), {}, NONE, id="root-not-looked-at"),
        pytest.param(part(card(fn0="inst")), instance(), WITH_CARD, NONE, id="with-its-function"),
        pytest.param(part(card(fn0="inst")), instance(), AT_HOME, [LOST], id="function-offered"),
        pytest.param(part(card(fn0="inst")), instance(launched=False), {}, [LOST], id="never-ran-and-has-it"),
        pytest.param(part(card(fn0="inst", fn1="inst")), instance(), WITH_CARD, [LOST], id="one-of-two"),
        pytest.param(part(card(Reclaim.HOLD, fn0="inst")), instance(), AT_HOME, [PROTECTED], id="burned-function"),
        pytest.param(part(card(Reclaim.HOLD, fn0="inst")), instance(), {}, [LOST, PROTECTED], id="all-and-burned"),
        pytest.param(part(card(Reclaim.HOLD, fn0="inst")), instance(settled=False), {}, NONE, id="deleted-just-now"),
        pytest.param(part(card(fn0="other")), instance(), WITH_CARD, [IDLE], id="function-is-anothers"),
        pytest.param(part(card()), instance(), WITH_CARD, [IDLE], id="no-function"),
        pytest.param(part(card()), instance(launched=False), WITH_CARD, NONE, id="died-before-its-claim"),
    ],
)
def test_an_instance_has_allocated_what_its_row_says_or_it_is_named_how_not(
    of: Part, who: Instance, held: Mapping[str, Amounts], kinds: list[Kind]
) -> None:
    assert [each.kind for each in of_instance(of, who, held)] == kinds


def test_what_an_instance_lacks_is_named_with_its_providers_and_what_there_is() -> None:
    of = part(card(fn0="inst"))
    [lost] = of_instance(of, instance(), {})
    assert lost.seen == (
        "instance inst has nothing allocated; it should have 512 MEMORY_MB, 2 VCPU of provider host-1 (root) and "
        f"1 {RC} of provider host-1_0000:81:00.0 (card)"
    )
    [short] = of_instance(of, instance(), {"root": {"VCPU": 1, "MEMORY_MB": 512}, "card": {RC: 1}})
    assert short.seen == (
        "instance inst lacks 1 VCPU of provider host-1 (root); it has 512 MEMORY_MB, 1 VCPU of provider host-1 (root) "
        f"and 1 {RC} of provider host-1_0000:81:00.0 (card)"
    )


def test_what_is_burned_is_never_to_be_allocated_again() -> None:
    assert lacking(part(card(Reclaim.HOLD, fn0="inst")), instance(), {}) == {"root": HOST_HAS}
    assert lacking(part(card(fn0="inst")), instance(), {}) == {"root": HOST_HAS, "card": {RC: 1}}


@pytest.mark.parametrize(
    ("instances", "why"),
    [
        pytest.param({}, "there is no such instance", id="no-row"),
        pytest.param({"inst": instance(host="host-2")}, "is on host-2", id="another-host"),
        pytest.param({"inst": instance(host=None)}, "is on no host", id="no-host"),
        pytest.param({"inst": instance()}, None, id="its-own"),
        pytest.param({"inst": instance(host=None, settled=False)}, None, id="on-its-way"),
    ],
)
def test_a_function_is_with_an_instance_of_its_host(instances: dict[str, Instance], why: str | None) -> None:
    found = list(of_functions(card(fn0="inst", fn1="inst"), instances))
    assert [each.kind for each in found] == ([] if why is None else [Kind.FUNCTION_WITHOUT_INSTANCE])
    for each in found:
        assert each.seen == (
            f"instance inst has 0000:81:00.0, 0000:81:00.1 of provider host-1_0000:81:00.0 (card), and {why}"
        )


@pytest.mark.parametrize(
    ("claims", "address", "has"),
    [
        pytest.param({"fn0": "web"}, FUNCTION, None, id="its-own"),
        pytest.param({}, FUNCTION, f"{FUNCTION} (which no instance has on record)", id="free"),
        pytest.param({"fn1": "web"}, FUNCTION, f"{FUNCTION} (which no instance has on record)", id="its-neighbour"),
        pytest.param({"fn0": "inst"}, FUNCTION, f"{FUNCTION} (which instance inst has on record)", id="anothers"),
        pytest.param({}, "0000:82:00.0", None, id="none-of-ours"),
    ],
)
def test_a_guest_has_no_function_that_is_not_its_instances_on_record(
    claims: dict[str, str], address: str, has: str | None
) -> None:
    found = list(of_lent_guests(card(**claims), {address: [Guest("web", "web-1", running=False)]}))
    assert [each.kind for each in found] == ([] if has is None else [Kind.GUEST_WITHOUT_CLAIM])
    for each in found:
        assert each.seen == f"domain web-1 (web) is off and has {has}"
        assert f"--resource {RC}:reserved=2 card`" in each.remedy


def test_a_guest_has_no_device_of_which_the_functions_are_lent() -> None:
    parent = card()._replace(functions=frozenset({"0000:81:00.1"}))
    [found] = of_lent_guests(parent, {FUNCTION: [Guest("web", "web-1", running=True)]})
    assert (found.kind, found.about) == (Kind.GUEST_WITHOUT_CLAIM, "web")


@pytest.mark.parametrize(
    ("who", "kind", "does"),
    [
        pytest.param(instance(), None, "", id="at-home"),
        pytest.param(instance(host="host-2", settled=False), None, "", id="on-its-way"),
        pytest.param(
            instance(host="host-2"), Kind.ALLOCATION_ELSEWHERE, "unset --provider card --provider root inst", id="moved"
        ),
        pytest.param(instance(host=None), STRAY, "openstack server delete inst", id="failed-without-a-host"),
    ],
)
def test_an_instance_holds_nothing_of_a_host_that_it_is_not_on(who: Instance, kind: Kind | None, does: str) -> None:
    found = list(of_consumers(part(card()), {"inst": WITH_CARD}, {"inst": who}))
    assert [each.kind for each in found] == ([] if kind is None else [kind])
    assert all(does in each.remedy for each in found)


def test_who_wrote_an_allocation_tells_whether_it_is_a_fault_of_ours() -> None:
    ours, foreign = (of_unknown(part(), "x", AT_HOME, each) for each in (CONSUMER_TYPE, "unknown"))
    assert (ours.kind, ours.counts) == (STRAY, True)
    assert "openstack resource provider allocation delete x" in ours.remedy
    assert (foreign.kind, foreign.counts) == (Kind.ALLOCATION_OF_ANOTHER, False)


def test_what_providers_say_is_turned_into_what_consumers_hold() -> None:
    said = {"root": {"a": {"VCPU": 1}, "b": {"VCPU": 2}}, "card": {"a": {RC: 1}}}
    assert by_consumer(said) == {"a": {"root": {"VCPU": 1}, "card": {RC: 1}}, "b": {"root": {"VCPU": 2}}}
