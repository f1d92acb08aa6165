"""What provider configuration adds to providers, what it leaves alone, and what it takes away again."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from autoclave.rules.provider_config import (
    COMPUTE_NODE,
    AddedInventory,
    Merge,
    Place,
    ProviderChange,
    ProviderConfig,
    ProviderEntry,
    TreeProvider,
    merge,
)
from autoclave.virt import driver

UUIDS = [f"{number}0000000-0000-4000-8000-00000000000a" for number in range(4)]
NAMES = ["host", "host_0000:81:00.0", "host_0000:82:00.0", "bandwidth"]
ROOT = TreeProvider(
    UUIDS[0], NAMES[0], is_compute_node=True, classes=frozenset({"VCPU"}), owned_classes=frozenset({"VCPU"})
)
CHILD = TreeProvider(UUIDS[3], NAMES[3])


def inventory(name: str, total: int = 1) -> AddedInventory:
    return AddedInventory(total, 0, 1, 2147483647, 1, 1.0, Place("a.yaml", 5, f"providers[0].{name}"))


def entry(
    *,
    uuid: str | None = None,
    name: str | None = None,
    classes: Sequence[str] = (),
    traits: Sequence[str] = (),
    line: int = 3,
) -> ProviderEntry:
    place = Place("a.yaml", line, f"providers[{line - 3}]")
    return ProviderEntry(place, uuid, name, {each: inventory(each) for each in classes}, dict.fromkeys(traits, place))


def config(*entries: ProviderEntry) -> ProviderConfig:
    return ProviderConfig(entries)


NOTHING = config()


def applied(outcome: Merge, tree: Sequence[TreeProvider]) -> tuple[TreeProvider, ...]:
    """The providers after *outcome* was remembered, written and forgotten, and their owners wrote what is theirs."""
    return tuple(written(forgotten_later(provider, change), change) for provider, change in _each(outcome, tree))


def _each(outcome: Merge, tree: Sequence[TreeProvider]) -> list[tuple[TreeProvider, ProviderChange]]:
    return [(provider, outcome.changes.get(provider.uuid, ProviderChange())) for provider in tree]


def written(provider: TreeProvider, change: ProviderChange) -> TreeProvider:
    return replace(
        provider,
        classes=(provider.classes - change.removed_classes) | set(change.inventories) | provider.owned_classes,
        traits=(provider.traits - change.removed_traits) | change.traits | provider.owned_traits,
    )


def remembered(provider: TreeProvider, change: ProviderChange) -> TreeProvider:
    return replace(
        provider,
        remembered_classes=provider.remembered_classes | set(change.inventories),
        remembered_traits=provider.remembered_traits | change.traits,
    )


def forgotten_later(provider: TreeProvider, change: ProviderChange) -> TreeProvider:
    after = remembered(provider, change)
    return replace(
        after,
        remembered_classes=after.remembered_classes - change.forgotten_classes,
        remembered_traits=after.remembered_traits - change.forgotten_traits,
    )


def test_an_entry_adds_its_inventories_and_traits_to_the_provider_that_it_names() -> None:
    by_name = entry(name=NAMES[3], classes=["CUSTOM_A"], traits=["CUSTOM_T"])
    by_uuid = entry(uuid=UUIDS[3], classes=["CUSTOM_A"], traits=["CUSTOM_T"])
    expected = {CHILD.uuid: ProviderChange({"CUSTOM_A": inventory("CUSTOM_A")}, frozenset({"CUSTOM_T"}))}
    for each in (by_name, by_uuid):
        assert merge(config(each), [ROOT, CHILD]) == Merge(expected, (), ())


def test_case_counts_neither_in_uuids_nor_in_names() -> None:
    tree = [replace(CHILD, uuid="ABCDEF00-0000-4000-8000-00000000000A", name="host_0000:0A:00.0")]
    for each in (
        entry(uuid=tree[0].uuid.lower(), traits=["CUSTOM_T"]),
        entry(name="host_0000:0a:00.0", traits=["CUSTOM_T"]),
    ):
        assert merge(config(each), tree).changes[tree[0].uuid].traits == {"CUSTOM_T"}


def test_of_two_names_that_differ_in_case_only_the_one_that_is_written_so_is_meant() -> None:
    tree = [replace(CHILD, name="Gpu"), replace(ROOT, name="gpu")]
    for order in (tree, tree[::-1]):
        assert set(merge(config(entry(name="Gpu", traits=["CUSTOM_T"])), order).changes) == {CHILD.uuid}


def test_compute_node_is_every_compute_node_and_nothing_else() -> None:
    other = replace(ROOT, uuid=UUIDS[1], name="host-2")
    changes = merge(config(entry(uuid=COMPUTE_NODE, traits=["CUSTOM_T"])), [ROOT, other, CHILD]).changes
    assert {uuid: change.traits for uuid, change in changes.items()} == {
        ROOT.uuid: {"CUSTOM_T"},
        other.uuid: {"CUSTOM_T"},
    }


def test_a_compute_node_that_is_named_gets_nothing_of_the_entry_for_all() -> None:
    other = replace(ROOT, uuid=UUIDS[1], name="host-2")
    general = entry(uuid=COMPUTE_NODE, classes=["CUSTOM_A"], traits=["CUSTOM_T"])
    for explicit in (entry(uuid=ROOT.uuid, traits=["CUSTOM_U"]), entry(name=ROOT.name, traits=["CUSTOM_U"])):
        for entries in ((general, explicit), (explicit, general)):
            changes = merge(config(*entries), [ROOT, other]).changes
            assert changes[ROOT.uuid] == ProviderChange({}, frozenset({"CUSTOM_U"}))
            assert changes[other.uuid].traits == {"CUSTOM_T"}


def test_an_entry_with_nothing_in_it_exempts_its_node_and_takes_away_what_it_had() -> None:
    general = entry(uuid=COMPUTE_NODE, classes=["CUSTOM_A"])
    before = applied(merge(config(general), [ROOT]), [ROOT])
    after = applied(merge(config(general, entry(name=ROOT.name)), before), before)
    assert "CUSTOM_A" in before[0].classes
    assert after == (ROOT,)


def test_a_provider_that_is_not_there_is_told_and_changes_nothing() -> None:
    gone, all_nodes = entry(name="elsewhere", classes=["CUSTOM_A"]), entry(uuid=COMPUTE_NODE, traits=["CUSTOM_T"])
    assert merge(config(gone, all_nodes), [CHILD]) == Merge({}, (), (gone, all_nodes))
    assert merge(config(all_nodes, entry(name=ROOT.name)), [ROOT]).absent == ()


def test_an_inventory_that_the_agent_writes_is_not_added_to_and_the_rest_of_the_entry_is() -> None:
    pci = replace(CHILD, owned_classes=frozenset({"CUSTOM_A"}))
    outcome = merge(config(entry(uuid=pci.uuid, classes=["CUSTOM_A", "CUSTOM_B"], traits=["CUSTOM_T"])), [pci])
    [conflict] = outcome.conflicts
    assert str(conflict) == (
        f"a.yaml:5: providers[0].CUSTOM_A: not possible for 'bandwidth' ({pci.uuid}), "
        "which gets its CUSTOM_A from this agent already; take it out of the entry"
    )
    assert set(outcome.changes[pci.uuid].inventories) == {"CUSTOM_B"}
    assert outcome.changes[pci.uuid].traits == {"CUSTOM_T"}


def test_an_inventory_that_somebody_else_has_put_there_is_a_conflict() -> None:
    foreign = replace(CHILD, classes=frozenset({"CUSTOM_A"}))
    outcome = merge(config(entry(uuid=foreign.uuid, classes=["CUSTOM_A"])), [foreign])
    assert ["somebody else has put CUSTOM_A" in str(each) for each in outcome.conflicts] == [True]
    assert outcome.changes == {}


def test_what_we_added_ourselves_is_no_conflict_at_the_second_sync_though_nobody_else_writes_that_provider() -> None:
    wanted = config(entry(uuid=CHILD.uuid, classes=["CUSTOM_A"]))
    first = merge(wanted, [CHILD])
    second = merge(wanted, applied(first, [CHILD]))
    assert second == first
    assert second.conflicts == ()


def test_a_class_that_the_agent_came_to_write_since_is_a_conflict_and_left_to_it() -> None:
    wanted = config(entry(uuid=CHILD.uuid, classes=["CUSTOM_A"]))
    [ours] = applied(merge(wanted, [CHILD]), [CHILD])
    taken = replace(ours, owned_classes=frozenset({"CUSTOM_A"}))
    outcome = merge(wanted, [taken])
    assert len(outcome.conflicts) == 1
    assert outcome.changes[CHILD.uuid] == ProviderChange(forgotten_classes=frozenset({"CUSTOM_A"}))


def test_an_accelerator_takes_traits_and_no_inventory() -> None:
    drive = replace(CHILD, traits_only=True)
    outcome = merge(config(entry(uuid=drive.uuid, classes=["CUSTOM_A"], traits=["CUSTOM_T"])), [drive])
    assert ["an entry can add traits only" in str(each) for each in outcome.conflicts] == [True]
    assert outcome.changes[drive.uuid] == ProviderChange({}, frozenset({"CUSTOM_T"}))


def test_a_provider_named_twice_follows_the_entry_with_its_uuid() -> None:
    name, uuid = entry(name=CHILD.name, classes=["CUSTOM_A"]), entry(uuid=CHILD.uuid, classes=["CUSTOM_B"], line=9)
    for entries in ((name, uuid), (uuid, name)):
        outcome = merge(config(*entries), [CHILD])
        assert set(outcome.changes[CHILD.uuid].inventories) == {"CUSTOM_B"}
        assert [str(each) for each in outcome.conflicts] == [
            f"a.yaml:3: providers[0]: 'bandwidth' is the provider {CHILD.uuid}, which a.yaml:9: providers[6] is for; "
            "merge the two"
        ]


def test_a_trait_that_was_there_before_stays_when_its_entry_goes() -> None:
    has_it = replace(CHILD, traits=frozenset({"CUSTOM_T"}))
    outcome = merge(config(entry(uuid=CHILD.uuid, traits=["CUSTOM_T"])), [has_it])
    assert outcome == Merge({}, (), ())


def test_a_trait_that_an_owner_came_to_write_since_stays_when_its_entry_goes() -> None:
    [ours] = applied(merge(config(entry(uuid=CHILD.uuid, traits=["CUSTOM_T"])), [CHILD]), [CHILD])
    outcome = merge(NOTHING, [replace(ours, owned_traits=frozenset({"CUSTOM_T"}))])
    assert outcome.changes[CHILD.uuid] == ProviderChange(forgotten_traits=frozenset({"CUSTOM_T"}))


CLASSES = st.frozensets(st.sampled_from(["CUSTOM_A", "CUSTOM_B", "CUSTOM_C"]))
TRAITS = st.frozensets(st.sampled_from(["CUSTOM_T", "CUSTOM_U", "CUSTOM_V"]))
PROVIDERS = st.builds(
    TreeProvider,
    st.just(""),
    st.just(""),
    is_compute_node=st.booleans(),
    classes=CLASSES,
    traits=TRAITS,
    owned_classes=CLASSES,
    owned_traits=TRAITS,
    traits_only=st.booleans(),
)
TREES = st.lists(PROVIDERS, max_size=4).map(
    lambda tree: tuple(
        replace(
            each,
            uuid=UUIDS[number],
            name=NAMES[number],
            classes=each.classes | each.owned_classes,
            traits=each.traits | each.owned_traits,
        )
        for number, each in enumerate(tree)
    )
)
"""Trees as their owners have written them, with nothing of ours in them."""

CONFIGS = st.lists(
    st.builds(
        lambda named, classes, traits: entry(**named, classes=sorted(classes), traits=sorted(traits)),
        st.sampled_from([{"uuid": uuid} for uuid in (*UUIDS, COMPUTE_NODE)] + [{"name": name} for name in NAMES]),
        CLASSES,
        TRAITS,
    ),
    unique_by=lambda each: each.key,
    max_size=6,
).map(lambda entries: config(*entries))


@given(CONFIGS, TREES)
def test_merging_the_result_again_changes_nothing(wanted: ProviderConfig, tree: tuple[TreeProvider, ...]) -> None:
    first = merge(wanted, tree)
    after = applied(first, tree)
    assert merge(wanted, after) == first
    assert applied(merge(wanted, after), after) == after


@given(CONFIGS, TREES)
def test_an_empty_configuration_takes_away_exactly_what_was_added(
    wanted: ProviderConfig, tree: tuple[TreeProvider, ...]
) -> None:
    between = applied(merge(wanted, tree), tree)
    assert applied(merge(NOTHING, between), between) == tree


@given(CONFIGS, CONFIGS, TREES)
def test_what_an_earlier_configuration_was_makes_no_difference(
    earlier: ProviderConfig, wanted: ProviderConfig, tree: tuple[TreeProvider, ...]
) -> None:
    between = applied(merge(earlier, tree), tree)
    outcome = merge(wanted, between)
    assert applied(outcome, between) == applied(merge(wanted, tree), tree)
    assert outcome.conflicts == merge(wanted, tree).conflicts


@given(CONFIGS, TREES, st.data())
def test_removing_an_entry_is_as_if_it_had_never_been(
    wanted: ProviderConfig, tree: tuple[TreeProvider, ...], data: st.DataObject
) -> None:
    kept = config(
        *data.draw(st.lists(st.sampled_from(wanted.entries), unique_by=id) if wanted.entries else st.just([]))
    )
    between = applied(merge(wanted, tree), tree)
    assert applied(merge(kept, between), between) == applied(merge(kept, tree), tree)


@given(CONFIGS, CONFIGS, TREES, st.data())
def test_a_death_between_remembering_writing_and_forgetting_is_made_good_by_the_next_merge(
    earlier: ProviderConfig, wanted: ProviderConfig, tree: tuple[TreeProvider, ...], data: st.DataObject
) -> None:
    before = applied(merge(earlier, tree), tree)
    outcome = merge(wanted, before)
    died = []
    for provider, change in _each(outcome, before):
        steps = [provider, remembered(provider, change), written(remembered(provider, change), change)]
        died.append(data.draw(st.sampled_from(steps)))
    again = merge(wanted, died)
    assert applied(again, died) == applied(outcome, before)
    assert again.conflicts == outcome.conflicts


@given(CONFIGS, TREES)
def test_nothing_that_others_have_is_ever_taken_away_or_written_over(
    wanted: ProviderConfig, tree: tuple[TreeProvider, ...]
) -> None:
    between = applied(merge(wanted, tree), tree)
    for outcome, providers in ((merge(wanted, tree), tree), (merge(NOTHING, between), between)):
        for provider, change in _each(outcome, providers):
            others = provider.owned_classes | (provider.classes - provider.remembered_classes)
            assert not others & (set(change.inventories) | change.removed_classes)
            assert not change.removed_traits & (provider.owned_traits | (provider.traits - provider.remembered_traits))
            assert not (provider.traits_only and change.inventories)


@given(CONFIGS, TREES)
def test_no_configured_inventory_is_left_out_without_a_word(
    wanted: ProviderConfig, tree: tuple[TreeProvider, ...]
) -> None:
    outcome = merge(wanted, tree)
    for each in wanted.entries:
        if each.means_every_compute_node or each in outcome.absent:
            continue
        [provider] = [one for one in tree if each.uuid == one.uuid or each.name == one.name]
        for name in each.inventories:
            added = name in outcome.changes.get(provider.uuid, ProviderChange()).inventories
            assert added or any(provider.uuid in conflict.message for conflict in outcome.conflicts)


def test_no_virt_driver_knows_of_provider_config() -> None:
    modules = list(Path(driver.__file__).parent.rglob("*.py"))
    assert len(modules) > 3
    assert [module.name for module in modules if "provider_config" in module.read_text()] == []
