"""What the documentation gives as an example works: files are read as the services read them."""

import re
from pathlib import Path
from typing import Any

import pytest
from keystoneauth1 import loading
from keystonemiddleware.opts import list_auth_token_opts
from oslo_config import cfg
from oslo_policy import opts as policy_opts

from autoclave.api.policy import Policy
from autoclave.cli.main import COMMANDS
from autoclave.conf import list_opts, new_config
from autoclave.conf.compute import PASSTHROUGH_KEYS, PASSTHROUGH_OPTION
from autoclave.nova import client as nova
from autoclave.objects.base import RequestContext
from autoclave.placement.transport import http_adapter
from autoclave.rules.device_spec import first_match, parse_device_spec
from autoclave.rules.flavor_image import Flavor, image_traits
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.pci_alias import parse_pci_alias
from autoclave.rules.pci_inventory import DevType, PCIFunction, parse_pci_device_spec, translate
from autoclave.rules.provider_config import parse
from autoclave.rules.resource_request import build_request

PAGES = Path(__file__).parents[2] / "docs" / "source"
EXAMPLES = PAGES / "examples"


def known() -> set[tuple[str, str]]:
    """Every option that a service reads, by group."""
    groups = [*list_opts(), *policy_opts.list_opts(), *list_auth_token_opts()]
    names = {(group, option.dest) for group, options in groups for option in options}
    password = loading.get_plugin_loader("password").get_options()
    return names | {("keystone_authtoken", option.dest) for option in password}


class Written(cfg.ConfigParser):
    """The options that a file has, by group and name."""

    def __init__(self, path: Path) -> None:
        self.options: set[tuple[str, str]] = set()
        sections: dict[str, Any] = {}
        super().__init__(str(path), sections)
        self.parse()
        self.options = {(section, name) for section, options in sections.items() for name in options}


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.conf")))
def test_an_example_sets_only_options_that_there_are_to_values_that_they_take(name: str) -> None:
    written = Written(EXAMPLES / name).options
    assert written
    assert written <= known()

    conf = new_config([str(EXAMPLES / name)])
    parse_device_spec(conf.nvme.device_spec)
    parse_device_spec(conf.pci.passthrough_whitelist, option=PASSTHROUGH_OPTION, extra_keys=PASSTHROUGH_KEYS)
    parse_pci_device_spec(conf.pci.device_spec)
    parse_pci_alias(conf.pci.alias)


@pytest.mark.parametrize("name", ["controller.conf", "agent.conf"])
def test_an_example_names_all_that_a_service_needs(name: str) -> None:
    conf = new_config([str(EXAMPLES / name)])
    assert conf.transport_url
    assert conf.database.connection
    http_adapter(conf)


def test_the_example_of_the_controllers_names_all_that_is_needed_to_tell_nova() -> None:
    assert nova.http_adapter(new_config([str(EXAMPLES / "controller.conf")])) is not None


@pytest.mark.parametrize(
    ("bus", "vendor", "product", "entry"),
    [
        ("41", "144d", "a808", 1),
        ("45", "144d", "a808", None),
        ("54", "144d", "a808", 1),
        ("45", "8086", "0a54", 2),
        ("41", "8086", "0a55", None),
    ],
)
def test_the_example_of_an_excluded_address_excludes_that_one_only(
    bus: str, vendor: str, product: str, entry: int | None
) -> None:
    specs = parse_device_spec(new_config([str(EXAMPLES / "device-spec.conf")]).nvme.device_spec)
    found = first_match(specs, vendor, product, PCIAddress.parse(f"0000:{bus}:00.0"))
    assert (found.entry if found else None) == entry


def test_the_aliases_of_the_example_ask_for_what_its_entries_tell_placement() -> None:
    conf = new_config([str(EXAMPLES / "pci-in-placement.conf")])
    slot, port = PCIAddress.parse("0000:81:00.0"), PCIAddress.parse("0000:82:00.0")
    functions = [
        PCIFunction(slot, "10de", "25b6", DevType.PCI),
        PCIFunction(port, "15b3", "101d", DevType.PF),
        PCIFunction(PCIAddress.parse("0000:82:00.1"), "15b3", "101e", DevType.VF, port),
    ]
    card, nic = translate(functions, parse_pci_device_spec(conf.pci.device_spec)).providers
    assert (card.one_time_use, nic.functions[0].managed) == (True, False)
    aliases = parse_pci_alias(conf.pci.alias)
    for alias, provider in ((aliases["gpu"], card), (aliases["nic"], nic)):
        assert alias.resource_class == provider.resource_class
        assert alias.required <= provider.traits


def test_the_example_policy_lets_the_team_in_and_nobody_else(tmp_path: Path) -> None:
    config = tmp_path / "autoclave.conf"
    config.write_text(f"[oslo_policy]\npolicy_file = {EXAMPLES / 'policy.yaml'}\n")
    policy = Policy(new_config([str(config)]))
    team = RequestContext(roles=["hardware", "member"], project_id="ops", user_id="1")
    stranger = RequestContext(roles=["member"], project_id="ops", user_id="2")
    for rule in ("cyborg:device:clean", "autoclave:device:get"):
        assert policy.allows(team, rule)
        assert not policy.allows(stranger, rule)
    assert not policy.allows(team, "autoclave:device:act")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.service")), ids=lambda path: path.name)
def test_a_unit_starts_a_command_that_there_is(path: Path) -> None:
    [line] = [line for line in path.read_text().splitlines() if line.startswith("ExecStart=")]
    program, command, option, _ = line.removeprefix("ExecStart=").split()
    assert program == "/opt/autoclave/bin/autoclave"
    assert command in COMMANDS
    assert option == "--config-file"


def test_the_property_that_the_page_on_scheduling_gives_an_image_is_a_demand() -> None:
    page = (PAGES / "scheduling.rst").read_text()
    properties = dict(re.findall(r"image set --property (\S+?)=(\S+) ", page))
    found = image_traits(properties)
    assert {f"trait:{name}" for name in found.required} == properties.keys() != set()


def test_what_the_page_on_provider_config_has_flavors_ask_for_is_what_its_sample_adds() -> None:
    page = (PAGES / "provider-config.rst").read_text()
    specs = dict(re.findall(r"``((?:resources|trait):\w+)=(\w+)``", page))
    assert {key.partition(":")[0] for key in specs} == {"resources", "trait"}
    group = build_request(Flavor("any", 0, 0, 0, 0, 0, specs), {}, {}).groups[""]
    added = parse({"sample": (EXAMPLES / "provider-config.yaml").read_text()}).entries[0]
    assert group.required <= added.traits.keys()
    for name, amount in group.resources.items():
        assert added.inventories[name].min_unit <= amount <= added.inventories[name].max_unit


def test_the_page_on_provider_config_names_the_directory_that_is_read_if_none_is_configured() -> None:
    directory = new_config([]).compute.provider_config_location
    page = (PAGES / "provider-config.rst").read_text()
    assert f"``[compute] provider_config_location`` (``{directory}``)" in page
