"""Flavor, image, aliases and device profile become one query, or a refusal that names the key."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoclave.exceptions import BadRequest
from autoclave.rules.flavor_image import Flavor, forbidden_anywhere, image_traits
from autoclave.rules.pci_alias import PCIAlias
from autoclave.rules.resource_request import ResourceRequest, build_request

ALIASES = {
    "gpu": PCIAlias("gpu", "CUSTOM_GPU", frozenset({"HW_GPU_API_VULKAN"})),
    "nic": PCIAlias("nic", "CUSTOM_NIC", forbidden=frozenset({"HW_PCI_LIVE_MIGRATABLE"})),
}


def flavor(**extra_specs: str) -> Flavor:
    """A small one; a key of *extra_specs* is written with ``__`` for the colon."""
    return Flavor("small", 2, 512, 10, 0, 0, {key.replace("__", ":"): value for key, value in extra_specs.items()})


def request(*pairs: tuple[str, str], image: Mapping[str, object] | None = None) -> ResourceRequest:
    """The request of a small flavor with the extra specs *pairs*."""
    return build_request(Flavor("small", 2, 512, 10, 0, 0, dict(pairs)), image or {}, ALIASES)


def asked(found: ResourceRequest) -> dict[str, str]:
    return dict(found.query())


def test_a_flavor_asks_for_its_processors_memory_and_disks() -> None:
    found = build_request(Flavor("big", 4, 2048, 10, 5, 1025, {}), {}, {})
    assert found.query() == [
        ("resources", "DISK_GB:17,MEMORY_MB:2048,VCPU:4"),
        ("root_required", "COMPUTE_NODE"),
        ("limit", "1000"),
    ]


def test_what_a_flavor_has_none_of_is_not_asked_for() -> None:
    found = build_request(Flavor("diskless", 1, 64, 0, 0, 0, {}), {}, {})
    assert asked(found)["resources"] == "MEMORY_MB:64,VCPU:1"


def test_an_extra_spec_overrides_what_the_flavor_says_of_the_class() -> None:
    assert asked(request(("resources:VCPU", "7")))["resources"] == "DISK_GB:10,MEMORY_MB:512,VCPU:7"


def test_an_extra_spec_of_zero_takes_the_class_out_of_the_request() -> None:
    found = request(("resources:VCPU", "0"), ("resources:MEMORY_MB", "0"), ("resources:CUSTOM_BAREMETAL", "1"))
    assert asked(found)["resources"] == "CUSTOM_BAREMETAL:1,DISK_GB:10"


def test_the_traits_of_flavor_and_image_are_united_in_the_unnumbered_group() -> None:
    found = request(
        ("trait:HW_CPU_X86_AVX2", "required"),
        ("trait:CUSTOM_OLD", "forbidden"),
        ("resources1:CUSTOM_NIC", "1"),
        ("trait1:CUSTOM_FAST", "required"),
        image={"trait:CUSTOM_TRUSTED_HOST": "required", "trait:HW_CPU_X86_AVX2": "required"},
    )
    assert asked(found)["required"] == "CUSTOM_TRUSTED_HOST,HW_CPU_X86_AVX2,!CUSTOM_OLD"
    assert asked(found)["required1"] == "CUSTOM_FAST"


def test_only_the_very_value_required_makes_a_demand_of_an_image() -> None:
    image = {
        "trait:CUSTOM_A": "forbidden",
        "trait:CUSTOM_B": "Required",
        "trait1:CUSTOM_C": "required",
        "trait:CUSTOM_D": None,
    }
    found = request(image=image)
    assert "required" not in asked(found)
    assert found.ignored_properties.keys() == image.keys()
    assert "'forbidden'" in found.ignored_properties["trait:CUSTOM_A"]


def test_what_nothing_follows_from_is_told_with_the_reason() -> None:
    image = {
        "hw_disk_bus": "virtio",
        "img_signature": "x",
        "os_admin_user": "me",
        "hw_firmware_type": "uefi",
        "os_hash_algo": "sha512",
        "a": 1,
    }
    found = request(
        ("hw:cpu_policy", "dedicated"),
        ("quota:disk_read_iops_sec", "1"),
        ("capabilities:cpu_info", "x"),
        ("ssd", "true"),
        ("maker:what", "1"),
        ("resources1:CUSTOM_NIC", "1"),
        ("trait1:CUSTOM_FAST", "required"),
        ("group_policy", "none"),
        ("pci_passthrough:alias", "gpu:1"),
        image=image,
    )
    assert found.ignored_extra_specs.keys() == {
        "hw:cpu_policy",
        "quota:disk_read_iops_sec",
        "capabilities:cpu_info",
        "ssd",
        "maker:what",
    }
    assert "not pinned" in found.ignored_extra_specs["hw:cpu_policy"]
    assert "ask for a trait" in found.ignored_extra_specs["ssd"]
    assert found.ignored_extra_specs["maker:what"] == "Autoclave does not know it"
    assert found.ignored_properties.keys() == {"hw_disk_bus", "img_signature", "os_admin_user"}
    assert found.ignored_properties["img_signature"] == "the signature of an image is not verified"


def test_a_flavor_that_forbids_what_the_image_requires_is_refused_with_both() -> None:
    with pytest.raises(BadRequest) as refused:
        request(("trait:CUSTOM_X", "forbidden"), image={"trait:CUSTOM_X": "required"})
    assert "'trait:CUSTOM_X=forbidden'" in str(refused.value)
    assert "image property 'trait:CUSTOM_X=required'" in str(refused.value)


def test_a_trait_that_a_device_must_not_have_may_be_required_of_the_host() -> None:
    found = request(
        ("resources1:CUSTOM_NIC", "1"), ("trait1:CUSTOM_X", "forbidden"), image={"trait:CUSTOM_X": "required"}
    )
    assert asked(found)["required1"] == "!CUSTOM_X"


def test_each_device_of_an_alias_has_a_group_of_its_own() -> None:
    found = request(("pci_passthrough:alias", "gpu:2, nic"))
    assert [(s, dict(g.resources)) for s, g in found.groups.items() if s] == [
        ("pci0", {"CUSTOM_GPU": 1}),
        ("pci1", {"CUSTOM_GPU": 1}),
        ("pci2", {"CUSTOM_NIC": 1}),
    ]
    assert asked(found)["requiredpci1"] == "COMPUTE_MANAGED_PCI_DEVICE,HW_GPU_API_VULKAN,OWNER_NOVA"
    assert asked(found)["requiredpci2"] == "COMPUTE_MANAGED_PCI_DEVICE,OWNER_NOVA,!HW_PCI_LIVE_MIGRATABLE"
    assert asked(found)["group_policy"] == "none"


def test_what_fewest_devices_will_do_for_is_asked_for_first() -> None:
    found = request(("pci_passthrough:alias", "nic,gpu"), ("resources_x:CUSTOM_A", "1"))
    keys = [key for key, _ in found.query() if key.startswith("resources")]
    assert keys == ["resources", "resourcespci0", "resourcespci1", "resources_x"]
    assert list(found.groups) == ["", "_x", "pci0", "pci1"], "it is told in the flavor's order"
    plain = PCIAlias("plain", "CUSTOM_GPU")
    mixed = build_request(flavor(pci_passthrough__alias="plain,gpu"), {}, {**ALIASES, "plain": plain})
    keys = [key for key, _ in mixed.query() if key.startswith("resources")]
    assert keys == ["resources", "resourcespci1", "resourcespci0"]


def test_the_groups_of_a_device_profile_are_called_as_nova_calls_them() -> None:
    groups = [{"resources:CUSTOM_NVME": "1", "trait:HW_NVME_CES": "required", "accel:x": "y"}, {"resources:FPGA": "2"}]
    found = build_request(flavor(accel__device_profile="two"), {}, {}, groups)
    assert asked(found)["resourcesdevice_profile_0"] == "CUSTOM_NVME:1"
    assert asked(found)["requireddevice_profile_0"] == "HW_NVME_CES,OWNER_CYBORG"
    assert asked(found)["resourcesdevice_profile_1"] == "FPGA:2"
    assert asked(found)["requireddevice_profile_1"] == "OWNER_CYBORG"
    assert found.groups["device_profile_1"].origin == "device profile two"


def test_groups_may_be_kept_from_sharing_a_provider() -> None:
    found = request(("group_policy", "isolate"), ("resources1:CUSTOM_A", "1"), ("resources2:CUSTOM_A", "1"))
    assert asked(found)["group_policy"] == "isolate"


def test_a_request_may_be_kept_to_one_host_in_every_group() -> None:
    found = dict(request(("resources_x:CUSTOM_A", "1")).query("root"))
    assert found["in_tree"] == found["in_tree_x"] == "root"


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("resources:VCPU", "two", "'two'"),
        ("resources:VCPU", "-1", "'-1'"),
        ("resources:VCPU", "1.5", "'1.5'"),
        ("resources:VCPU", "2147483648", "2147483647"),
        ("resources:VCPU", "٣", "whole number"),
        ("resources:vcpu", "1", "'vcpu'"),
        ("resources:", "1", "capitals"),
        ("resources:CUSTOM_A,VCPU", "1", "capitals"),
        ("resources!:VCPU", "1", "suffix '!'"),
        ("resources" + "x" * 65 + ":VCPU", "1", "suffix"),
        ("trait:CUSTOM_X", "maybe", "'maybe'"),
        ("trait:CUSTOM_X", "Required", "'Required'"),
        ("trait:CUSTOM_X,!CUSTOM_Y", "required", "capitals"),
        ("trait1:CUSTOM_X", "required", "resources1:CLASS"),
        ("traits:CUSTOM_X", "required", "resourcess:CLASS"),
        ("group_policy", "some", "none, isolate"),
        ("pci_passthrough:alias", "", "NAME:COUNT"),
        ("pci_passthrough:alias", "gpu:0", "'gpu:0'"),
        ("pci_passthrough:alias", "gpu:65", "64"),
        ("pci_passthrough:alias", "gpu:40,nic:25", "64"),
        ("pci_passthrough:alias", "gpu:many", "'gpu:many'"),
        ("pci_passthrough:alias", "gpu:", "'gpu:'"),
        ("pci_passthrough:alias", "gpu,,nic", "''"),
        ("pci_passthrough:alias", "tpu:1", "no PCI alias 'tpu'"),
        ("accel:device_profile", " ", "names no device profile"),
    ],
)
def test_a_malformed_extra_spec_is_refused_by_its_key(key: str, value: str, said: str) -> None:
    with pytest.raises(BadRequest) as refused:
        request((key, value))
    assert key in str(refused.value)
    assert said in str(refused.value)


@pytest.mark.parametrize("key", ["trait:CUSTOM_X,!CUSTOM_Y", "trait:in:CUSTOM_X", "trait:"])
def test_an_image_cannot_smuggle_another_demand_into_the_query(key: str) -> None:
    with pytest.raises(BadRequest, match=f"Image property '{key}'"):
        request(image={key: "required"})


def test_a_suffix_that_an_alias_needs_is_not_taken_silently() -> None:
    with pytest.raises(BadRequest, match="suffix 'pci0'"):
        request(("resourcespci0:CUSTOM_A", "1"), ("pci_passthrough:alias", "gpu"))


def test_a_flavor_of_nothing_is_refused() -> None:
    with pytest.raises(BadRequest, match="no resources at all"):
        build_request(Flavor("void", 0, 0, 0, 0, 0, {}), {}, {})


def test_a_demand_on_the_host_by_a_flavor_that_takes_nothing_of_the_host_is_refused() -> None:
    with pytest.raises(BadRequest, match="trait:CUSTOM_X"):
        build_request(
            Flavor("device only", 0, 0, 0, 0, 0, {"resources1:CUSTOM_A": "1"}), {"trait:CUSTOM_X": "required"}, {}
        )


def test_a_rebuild_learns_what_any_group_forbids() -> None:
    specs = {"trait:CUSTOM_A": "forbidden", "trait_b:CUSTOM_B": "forbidden", "trait:CUSTOM_C": "required"}
    assert forbidden_anywhere(specs) == {"CUSTOM_A": "trait:CUSTOM_A", "CUSTOM_B": "trait_b:CUSTOM_B"}


TRAITS = st.sampled_from(["CUSTOM_A", "CUSTOM_B", "CUSTOM_C", "HW_CPU_X86_AVX2"])
VALUES = st.sampled_from(["required", "forbidden", "Required", ""])


@given(st.dictionaries(TRAITS, st.sampled_from(["required", "forbidden"])), st.dictionaries(TRAITS, VALUES))
def test_exactly_the_union_of_the_demands_is_asked_for(of_flavor: dict[str, str], of_image: dict[str, str]) -> None:
    pairs = [(f"trait:{name}", value) for name, value in of_flavor.items()]
    image = {f"trait:{name}": value for name, value in of_image.items()}
    required = {name for name, value in [*of_flavor.items(), *of_image.items()] if value == "required"}
    forbidden = {name for name, value in of_flavor.items() if value == "forbidden"}
    if required & forbidden:
        with pytest.raises(BadRequest):
            request(*pairs, image=image)
        return
    found = request(*pairs, image=image)
    parts = set(asked(found).get("required", "").split(",")) - {""}
    assert parts == required | {f"!{name}" for name in forbidden}
    assert len(found.ignored_properties) == sum(value != "required" for value in of_image.values())


@given(st.dictionaries(st.text(max_size=80), st.text(max_size=20)), st.dictionaries(st.text(max_size=40), st.text()))
def test_whatever_is_written_there_is_a_request_or_a_refusal(specs: dict[str, str], image: dict[str, str]) -> None:
    prefixed = {f"trait{key}": value for key, value in specs.items()} | {f"resources{k}": v for k, v in specs.items()}
    try:
        found = build_request(Flavor("any", 1, 1, 1, 0, 0, prefixed), image, ALIASES)
    except BadRequest:
        return
    assert all(group.resources and all(group.resources.values()) for group in found.groups.values())


@given(st.dictionaries(st.text(max_size=40), st.text(max_size=12)))
def test_every_property_that_begins_as_a_trait_is_either_a_demand_or_told(properties: dict[str, str]) -> None:
    given_keys = {f"trait:{key}": value for key, value in properties.items()}
    try:
        found = image_traits(given_keys)
    except BadRequest:
        return
    assert len(found.required) + len(found.ignored) == len(given_keys)
