"""A device's provider gets its name, its parent, its class and its traits, with the fewest writes."""

import uuid
from dataclasses import replace
from itertools import count

import pytest

from autoclave.exceptions import PlacementConflict
from autoclave.placement.provider_tree import ATTEMPTS, DesiredProvider, ensure_provider, provider_named
from autoclave.placement.records import Inventory, Provider
from autoclave.rules.resource_names import OWNER_CYBORG, pci_traits
from autoclave.testing.placement import FakePlacement
from autoclave.testing.placement.faults import Faults, before

CLASS = "CUSTOM_NVME_144D_A808"
TRAITS = frozenset({"HW_NVME_CES", "CUSTOM_FAST"})


class Site:
    """``placement`` may be made to fail; ``onlooker`` sees it as it is."""

    def __init__(self) -> None:
        service = FakePlacement()
        self.faults = Faults(service)
        self.placement, self.onlooker = self.faults.client(), service.client()
        self.root = self.onlooker.create_provider(str(uuid.uuid4()), "host-1")
        self.desired = DesiredProvider(str(uuid.uuid4()), "host-1_0000:0A:00.0", self.root.uuid, CLASS, TRAITS)

    def ensure(self, present: Provider | None = None) -> None:
        ensure_provider(self.placement, self.desired, present)

    @property
    def provider(self) -> Provider:
        return self.onlooker.get_provider(self.desired.uuid)

    @property
    def traits(self) -> frozenset[str]:
        return self.onlooker.get_traits(self.desired.uuid).names

    def set_traits(self, *names: str) -> None:
        """What an operator does by hand."""
        self.onlooker.ensure_traits(names)
        self.onlooker.put_traits(self.desired.uuid, self.onlooker.get_traits(self.desired.uuid).generation, names)

    def requests(self, method: str) -> list[str]:
        return [call.path.rpartition("/")[2] for call in self.faults.calls if call.method == method]


@pytest.fixture
def site() -> Site:
    """A host's provider, and a device that has none yet."""
    return Site()


def test_a_new_provider_is_below_its_host_with_its_traits(site: Site) -> None:
    site.ensure()
    made = site.provider
    assert (made.name, made.parent, made.root) == ("host-1_0000:0A:00.0", site.root.uuid, site.root.uuid)
    assert site.traits == TRAITS | {OWNER_CYBORG}
    one = Inventory(1, 1, 1, 1, 1, 1.0)
    site.onlooker.put_inventories(made.uuid, site.provider.generation, {CLASS: one})  # the class exists


def test_a_provider_that_is_as_desired_is_not_written(site: Site) -> None:
    site.ensure()
    site.faults.clear()
    site.ensure(site.provider)
    assert site.requests("POST") == []
    assert "traits" not in site.requests("PUT")


def test_a_custom_trait_of_an_operator_is_kept_and_a_former_one_goes(site: Site) -> None:
    """What the device no longer is would lead requests to it that it cannot serve."""
    site.ensure()
    former = pci_traits("10de", "25b6")
    site.set_traits("CUSTOM_RACK_7", "HW_NVME_BES", *former)
    site.ensure(site.provider)
    assert site.traits == TRAITS | {OWNER_CYBORG, "CUSTOM_RACK_7"}


def test_a_custom_trait_of_an_operator_is_not_a_reason_to_write(site: Site) -> None:
    site.ensure()
    site.set_traits("CUSTOM_RACK_7", *TRAITS, OWNER_CYBORG)
    site.faults.clear()
    site.ensure(site.provider)
    assert "traits" not in site.requests("PUT")


def overtake(site: Site, times: int | None = None) -> None:
    """Another service sets a trait each time just before we write ours."""
    racks = count(1)
    site.faults.add(
        before(lambda: site.set_traits(f"CUSTOM_RACK_{next(racks)}")),
        method="PUT",
        path=f"{site.desired.uuid}/traits$",
        times=times,
    )


@pytest.mark.parametrize("times", [1, 2])
def test_traits_that_another_overtakes_are_written_again(site: Site, times: int) -> None:
    overtake(site, times)
    site.ensure()
    assert site.traits == TRAITS | {OWNER_CYBORG, f"CUSTOM_RACK_{times}"}


def test_traits_that_are_overtaken_each_time_are_a_conflict(site: Site) -> None:
    overtake(site)
    with pytest.raises(PlacementConflict) as told:
        site.ensure()
    assert told.value.code == "placement.concurrent_update"
    assert site.requests("PUT").count("traits") == ATTEMPTS


def test_a_name_that_another_provider_has_is_a_conflict_with_its_code(site: Site) -> None:
    site.onlooker.create_provider(str(uuid.uuid4()), site.desired.name, site.root.uuid)
    with pytest.raises(PlacementConflict) as told:
        site.ensure()
    assert told.value.code == "placement.duplicate_name"
    assert site.desired.name in str(told.value)


def test_a_provider_below_another_root_is_named_with_the_code(site: Site) -> None:
    site.ensure()
    other = site.onlooker.create_provider(str(uuid.uuid4()), "host-2")
    site.desired = replace(site.desired, parent=other.uuid)
    with pytest.raises(PlacementConflict) as told:
        site.ensure()
    assert told.value.code == "placement.duplicate_name"
    assert f"({site.desired.uuid}) is below the root host-1 ({site.root.uuid}), not below host-2" in str(told.value)


def test_a_provider_of_a_tree_is_found_by_its_name_in_either_spelling(site: Site) -> None:
    site.ensure()
    tree = site.onlooker.providers_in_tree(site.root.uuid)
    assert provider_named(tree, "host-1_0000:0a:00.0") == site.provider
    assert provider_named(tree, "host-1_0000:0A:00.1") is None
