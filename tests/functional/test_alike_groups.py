"""What is left out for too few devices of a kind is what Placement would find nothing at, and nothing else."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from autoclave.conductor.scheduling import MANY, one_of_each, with_enough
from autoclave.placement.client import PlacementClient
from autoclave.placement.records import Inventory
from autoclave.rules.flavor_image import Flavor
from autoclave.rules.pci_alias import PCIAlias
from autoclave.rules.resource_names import FLAVOR_TRAITS as ALWAYS
from autoclave.rules.resource_request import ResourceRequest, build_request
from autoclave.testing.placement import FakePlacement

ALIASES = {
    "any": PCIAlias("any", "CUSTOM_A"),
    "big": PCIAlias("big", "CUSTOM_A", required=frozenset({"CUSTOM_BIG"})),
    "small": PCIAlias("small", "CUSTOM_A", forbidden=frozenset({"CUSTOM_BIG"})),
}
CARDS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 1), st.booleans()), max_size=3)
"""Of each card, how many functions it has, how many of them are reserved, and whether it has the trait."""


def add_tree(client: PlacementClient, cards: list[tuple[int, int, bool]]) -> str:
    root = client.create_provider(str(uuid.uuid4()), str(uuid.uuid4()))
    generation = client.put_inventories(root.uuid, 0, {"VCPU": Inventory(64, 0, 1, 64, 1, 1.0)})
    client.put_traits(root.uuid, generation, ["COMPUTE_NODE"])
    for total, reserved, big in cards:
        made = client.create_provider(str(uuid.uuid4()), str(uuid.uuid4()), root.uuid)
        generation = client.put_inventories(made.uuid, 0, {"CUSTOM_A": Inventory(total, reserved, 1, total, 1, 1.0)})
        client.put_traits(made.uuid, generation, {*ALWAYS, "CUSTOM_BIG"} if big else ALWAYS)
    return root.uuid


def asked(text: str) -> ResourceRequest:
    return build_request(Flavor("f", 1, 0, 0, 0, 0, {"pci_passthrough:alias": text}), {}, ALIASES)


def test_a_few_that_are_alike_need_no_question_beforehand() -> None:
    assert one_of_each(asked(f"any:{MANY - 1},big:{MANY - 1}")) is None


def test_the_question_beforehand_is_for_one_of_each_kind() -> None:
    sketch = one_of_each(asked(f"any,big:{MANY},any,small"))
    assert sketch is not None
    assert list(sketch.groups) == ["", "pci0", "pci1", f"pci{MANY + 2}"]


@given(CARDS, CARDS, st.sampled_from([f"big:{MANY}", f"small:{MANY},any", f"any:{MANY + 1}", f"any,big:{MANY}"]))
def test_no_host_is_left_out_at_which_placement_finds_something(
    one: list[tuple[int, int, bool]], other: list[tuple[int, int, bool]], text: str
) -> None:
    client = FakePlacement().client()
    client.ensure_resource_class("CUSTOM_A")
    client.ensure_traits(["CUSTOM_BIG"])
    roots = [add_tree(client, one), add_tree(client, other)]
    request = asked(text)
    sketch = one_of_each(request)
    assert sketch is not None
    able = with_enough(request, client.allocation_candidates(sketch.query()).summaries)
    found = {root for root in roots if client.allocation_candidates(request.query(root)).candidates}
    assert found <= able
    if "," not in text:
        assert found == able, "of one kind, enough is all that it needs"
