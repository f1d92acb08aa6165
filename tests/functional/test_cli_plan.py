"""``autoclave plan`` on a simulated host."""

import json
from pathlib import Path
from typing import Any

import pytest

from autoclave.cli.main import main
from autoclave.hardware.erase.work import EraseRates
from autoclave.simulator.drive_spec import DriveSpec
from autoclave.simulator.functions import FunctionSpec
from autoclave.simulator.host import Fleet, SimulatedHost

ERASABLE, OWN_DISK, UNMATCHED, ZEROED = "0000:41:00.0", "0000:42:00.0", "0000:43:00.0", "0000:44:00.0"


class Planner:
    """``autoclave plan`` on a host of three drives, which it must not change."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        drives = [
            DriveSpec(ERASABLE, "S1", crypto=True, iommu_group=7),
            DriveSpec(OWN_DISK, "S2", crypto=True, mounted=True),
            DriveSpec(UNMATCHED, "S3", product="0011", iommu_group=7),
            DriveSpec(ZEROED, "S4", format_crypto=True),
        ]
        self.host = host = SimulatedHost.create(directory / "host", "compute-1", drives)
        self._capsys = capsys
        self._config = directory / "autoclave.conf"
        self._config.write_text(
            f"[agent]\nresource_provider_name = compute-1\ndata_dir = {directory}\nsysfs_root = {host.paths.sysfs}\n"
            f"dev_root = {host.paths.dev}\nproc_root = {host.paths.proc}\netc_root = {host.paths.etc}\n"
            f"tools_path = {','.join(map(str, host.paths.tools))}\n"
            '[nvme]\ndevice_spec = {"vendor_id": "1b36", "product_id": "0010"}\n'
        )

    def add(self, text: str) -> None:
        """Let the configuration say more."""
        self._config.write_text(self._config.read_text() + text)

    def ask(self, *arguments: str, code: int = 0) -> str:
        """What is said: on stdout, or of an error on stderr."""
        before = self._media()
        assert main(["plan", *arguments, "--config-file", str(self._config)]) == code
        assert self._media() == before
        said = self._capsys.readouterr()
        self.setup = [line for line in said.err.splitlines() if line.startswith("Host setup: ")]
        return said.err if code else said.out

    def rows(self) -> dict[str, dict[str, Any]]:
        """What programs are told, by address."""
        return {row["address"]: row for row in json.loads(self.ask("--long", "-f", "json"))}

    def remember(self, model: str, size: int, seconds: float) -> None:
        """A drive of the model was overwritten at that pace."""
        EraseRates(self._config.parent).remember(model, "write_zeroes", size, seconds)

    def _media(self) -> list[bytes]:
        return [self.host.read(address, 0, 4096) for address in (ERASABLE, OWN_DISK, UNMATCHED)]


@pytest.fixture
def planner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Planner:
    return Planner(tmp_path, capsys)


def test_a_drive_shows_its_erase_why_not_another_and_what_placement_would_get(planner: Planner) -> None:
    row = planner.rows()[ERASABLE]
    assert (row["action"], row["refused"]) == ("sanitize_crypto", [])
    assert "clear_action=auto" in row["why"]
    assert any(
        line.startswith("sanitize_block: the controller does not support Block Erase") for line in row["rejected"]
    )
    assert row["provider"] == f"compute-1_{ERASABLE}"
    assert row["resource_class"] == "CUSTOM_NVME_1B36_0010"
    assert {"OWNER_CYBORG", "HW_NVME_CES"} <= set(row["traits"])


def test_a_drive_that_does_not_say_how_long_its_sanitize_takes_has_no_figure_made_up(planner: Planner) -> None:
    assert planner.rows()[ERASABLE]["estimate"] == "unknown: the drive does not report it"


def test_zeroing_takes_as_long_as_at_the_pace_of_the_last_drive_of_the_model(planner: Planner) -> None:
    assert planner.rows()[ZEROED]["estimate"].startswith("unknown: no drive of this model")
    planner.remember("Simulated NVMe Drive", 1_000_000, 1.0)
    size = DriveSpec(ZEROED, "S4").size_bytes
    assert planner.rows()[ZEROED]["estimate"] == f"{round(size / 1e6)} s (1 MB/s, as the last drive of this model)"


def test_an_erase_that_the_timeout_would_cut_short_is_said_to(planner: Planner) -> None:
    planner.remember("Simulated NVMe Drive", 1000, 1.0)
    assert "[nvme] cleanup_timeout = 900 is too short" in planner.rows()[ZEROED]["estimate"]


def test_a_drive_that_is_not_erased_has_no_estimate(planner: Planner) -> None:
    assert planner.rows()[OWN_DISK]["estimate"] is None


def test_the_other_functions_that_a_guest_would_get_as_well_are_named(planner: Planner) -> None:
    assert planner.rows()[ERASABLE]["iommu_group"] == [UNMATCHED]


def test_the_hosts_own_disk_is_refused_and_says_once_who_uses_it(planner: Planner) -> None:
    row = planner.rows()[OWN_DISK]
    [refused], [holder] = row["refused"], row["holders"]
    assert "this host uses it" in refused
    assert refused.count(holder) == 1
    assert f"allow_host_device = {OWN_DISK}" in refused
    assert (row["action"], row["provider"], row["traits"]) == (None, None, [])


def test_a_drive_that_no_entry_matches_is_shown_all_the_same(planner: Planner) -> None:
    row = planner.rows()[UNMATCHED]
    assert row["refused"] == ["no device_spec entry matches"]
    assert (row["entry"], row["provider"]) == (None, None)


def test_all_drives_fit_on_a_terminal_of_120_columns(planner: Planner) -> None:
    table = planner.ask()
    assert all(drive in table for drive in (ERASABLE, OWN_DISK, UNMATCHED))
    assert max(map(len, table.splitlines())) <= 120


@pytest.mark.parametrize("address", [ERASABLE, OWN_DISK, UNMATCHED])
def test_one_drive_is_told_in_full_and_fits_as_well(address: str, planner: Planner) -> None:
    assert json.loads(planner.ask("show", address, "-f", "json")) == planner.rows()[address]
    assert max(map(len, planner.ask("show", address).splitlines())) <= 120


def test_an_address_without_a_drive_is_an_error(planner: Planner) -> None:
    said = planner.ask("show", "0000:99:00.0", code=1)
    assert "0000:99:00.0 is no NVMe controller of this host" in said


CARD, VIRTUAL = "0000:82:00.0", "0000:82:02.0"


@pytest.fixture
def cards(planner: Planner) -> Planner:
    """The same host with a network card and its virtual function, and both drivers."""
    planner.host.functions.plug(
        FunctionSpec(CARD, "8086", "1572", class_code="020000", driver="i40e"),
        FunctionSpec(VIRTUAL, "8086", "154c", class_code="020000", driver="iavf", physfn=CARD, iommu_group=7),
    )
    planner.add("[agent]\nenabled_drivers = nvme_driver,pci_driver\n")
    return planner


def test_a_card_is_shown_with_its_handles_and_that_it_returns_uncleaned(cards: Planner) -> None:
    cards.add(f'[pci]\npassthrough_whitelist = {{"address": "{CARD}"}}\n')
    row = cards.rows()[CARD]
    assert (row["action"], row["refused"], row["estimate"]) == ("returns uncleaned", [], None)
    assert row["handles"] == [f"{VIRTUAL} (iavf)"]
    assert row["iommu_group"] == [ERASABLE, UNMATCHED]
    assert (row["provider"], row["resource_class"]) == (f"compute-1_{CARD}", "CUSTOM_PCI")
    assert row["reserved"] == "0 if its state is available, else 1"
    assert cards.rows()[ERASABLE]["action"] == "sanitize_crypto"


def test_a_card_that_is_not_ready_says_why(cards: Planner) -> None:
    cards.add(f'[pci]\npassthrough_whitelist = {{"address": "{CARD}", "managed": false}}\n')
    row = cards.rows()[CARD]
    assert row["action"] is None
    assert "bound to iavf" in row["refused"][0]


def test_a_virtual_function_of_a_drive_that_is_a_handle_is_not_told_as_one_that_no_entry_matches(
    cards: Planner,
) -> None:
    virtual = "0000:43:00.1"
    cards.host.insert(virtual, DriveSpec(virtual, "", product="0011", physfn=UNMATCHED))
    assert cards.rows()[virtual]["refused"] == ["no device_spec entry matches"]
    cards.add(f'[pci]\npassthrough_whitelist = {{"address": "{UNMATCHED}"}}\n')
    rows = cards.rows()
    assert [handle.partition(" ")[0] for handle in rows[UNMATCHED]["handles"]] == [virtual]
    assert virtual not in rows


def test_a_drive_that_two_drivers_claim_says_that_the_agent_does_not_start(cards: Planner) -> None:
    cards.add(f'[pci]\npassthrough_whitelist = {{"address": "{ERASABLE}"}}\n')
    assert "nvme_driver and pci_driver claim it" in cards.rows()[ERASABLE]["refused"][0]


# What instances get by flavor

GPU = "0000:81:00.0"
ONE_TIME_USE = "one-time-use: burned after every instance"


@pytest.fixture
def flavors(cards: Planner) -> Planner:
    """The same host with a graphics card."""
    cards.host.functions.plug(FunctionSpec(GPU, "10de", "25b6", iommu_group=7))
    return cards


def test_a_device_of_one_time_use_says_that_it_is_burned_after_every_instance(flavors: Planner) -> None:
    flavors.add(f'[pci]\ndevice_spec = {{"address": "{GPU}", "one_time_use": true, "resource_class": "my gpu"}}\n')
    row = flavors.rows()[GPU]
    assert (row["action"], row["refused"]) == (ONE_TIME_USE, [])
    assert (row["provider"], row["resource_class"]) == (f"compute-1_{GPU}", "CUSTOM_MY_GPU")
    assert row["reserved"] == "1 from its first instance until it is released, else 0"
    assert row["traits"] == ["COMPUTE_MANAGED_PCI_DEVICE", "HW_PCI_ONE_TIME_USE", "OWNER_NOVA"]
    assert row["iommu_group"] == [ERASABLE, UNMATCHED, VIRTUAL]
    assert row["entry"].startswith("1: {")
    table = flavors.ask()
    assert "one-time-use:" in table
    assert max(map(len, table.splitlines())) <= 120


def test_what_is_neither_cleaned_nor_of_one_time_use_says_so_by_name(flavors: Planner) -> None:
    flavors.add(
        f'[pci]\ndevice_spec = {{"address": "{GPU}"}}\n'
        'device_spec = {"vendor_id": "8086", "product_id": "154c", "managed": "no"}\n'
    )
    rows = flavors.rows()
    assert (rows[GPU]["action"], rows[GPU]["reserved"]) == ("returns uncleaned", "0")
    assert rows[CARD]["device"] == "8086:1572, 1 virtual function 8086:154c"
    assert rows[CARD]["action"] is None
    assert "bound to iavf" in rows[CARD]["refused"][0]
    assert rows[CARD]["handles"][0].startswith(f"{VIRTUAL} (iavf, not managed): ")


@pytest.mark.parametrize("option", ["passthrough_whitelist", "device_spec"])
@pytest.mark.parametrize(
    ("keys", "policy", "method", "guarantee", "why"),
    [
        ("", "none", None, "returns uncleaned", "erase"),
        ('"reclaim": "hold"', "hold", None, "held until released", "hold"),
        ('"reclaim": "erase", "clear_action": "reset"', "erase", "reset", "returns uncleaned (reset)", "reset"),
        (
            '"reclaim": "erase", "clear_action": "command", "clear_command": ["/etc/autoclave/clear.d/clear", "-a"]',
            "erase", "command", "cleaned by the operator's command",
            "clear_action=command /etc/autoclave/clear.d/clear -a",
        ),
    ],
)  # fmt: skip
def test_the_plan_shows_policy_method_and_guarantee(
    flavors: Planner, option: str, keys: str, policy: str, method: str | None, guarantee: str, why: str
) -> None:
    """The why column of the other policies is that of the option."""
    flavors.add(f'[pci]\n{option} = {{"address": "{GPU}"{keys and ", "}{keys}}}\n')
    row = flavors.rows()[GPU]
    assert row["refused"] == []
    assert (row["policy"], row["method"], row["guarantee"]) == (policy, method, guarantee)
    if policy == "erase":
        assert (row["action"], row["reserved"]) == (guarantee, "0 if its state is available, else 1")
        assert why in row["why"]


def test_the_plan_refuses_what_cannot_be_reset(flavors: Planner) -> None:
    (flavors.host.root / "sys/bus/pci/devices" / GPU / "reset").unlink()
    flavors.add(f'[pci]\ndevice_spec = {{"address": "{GPU}", "reclaim": "erase", "clear_action": "reset"}}\n')
    row = flavors.rows()[GPU]
    assert (row["action"], row["policy"]) == (None, None)
    assert "the kernel knows no way to reset it" in row["refused"][0]


def test_a_drive_for_flavors_is_withheld_or_burned_and_not_told_as_one_that_no_entry_matches(flavors: Planner) -> None:
    flavors.add('[pci]\ndevice_spec = {"address": "0000:43:*"}\n')
    row = flavors.rows()[UNMATCHED]
    assert (row["action"], row["provider"]) == (None, None)
    assert "set one_time_use, or let [nvme] device_spec offer it" in row["refused"][0]


def test_the_hosts_own_disk_is_no_more_for_flavors_than_for_drivers(flavors: Planner) -> None:
    flavors.add('[pci]\ndevice_spec = {"address": "0000:42:*", "one_time_use": true}\n')
    row = flavors.rows()[OWN_DISK]
    assert (row["action"], row["provider"]) == (None, None)
    [why] = row["refused"]
    assert "this host uses it" in why
    assert row["holders"]


def test_entries_that_cannot_be_followed_are_said_of_the_function(flavors: Planner) -> None:
    flavors.add(
        f'[pci]\ndevice_spec = {{"address": "{ERASABLE}", "one_time_use": true}}\n'
        'device_spec = {"product_id": "154c", "one_time_use": true}\n'
    )
    rows = flavors.rows()
    assert rows[ERASABLE]["refused"][0] == (
        "nvme_driver and [pci] device_spec claim it, so it is not offered by flavor: let only one match it"
    )
    [wrong] = rows[CARD]["refused"]
    assert "Only whole devices (type-PCI, type-PF) can be of one time use" in wrong


def test_a_card_that_an_entry_means_with_its_virtual_functions_lends_these(flavors: Planner) -> None:
    flavors.add(f'[pci]\ndevice_spec = {{"address": "{CARD}"}}\n')
    row = flavors.rows()[CARD]
    assert (row["resource_class"], row["refused"]) == ("CUSTOM_PCI_8086_154C", [])
    assert row["handles"] == [f"{VIRTUAL} (iavf)"]


@pytest.mark.parametrize("option", ["passthrough_whitelist", "device_spec"])
def test_a_withheld_virtual_function_is_named_in_its_cards_row(flavors: Planner, option: str) -> None:
    """The row said that the card is offered, and nothing of the function that is not."""
    withheld = "0000:82:02.1"
    used = {"driver": "iavf", "interface": "ens9"}
    flavors.host.functions.plug(FunctionSpec(withheld, "8086", "154c", class_code="020000", physfn=CARD, **used))
    flavors.add(f'[pci]\n{option} = {{"vendor_id": "8086", "product_id": "154c"}}\n')
    row = flavors.rows()[CARD]
    assert row["device"] == "8086:1572, 1 of 2 virtual functions 8086:154c"
    assert row["action"] == "returns uncleaned"
    [refused] = row["refused"]
    assert refused.startswith(f"not offered: {withheld} (iavf): ")
    assert str(row["reserved"]).startswith("0")


def test_an_entry_that_cannot_be_read_is_named(flavors: Planner) -> None:
    flavors.add('[pci]\ndevice_spec = {"vendor_id": "10de", "one_time_us": true}\n')
    said = flavors.ask(code=1)
    assert "[pci] device_spec, entry 1, key 'one_time_us': unknown key; did you mean 'one_time_use'?" in said


def test_a_simulated_host_can_be_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A policy is rehearsed on the hosts of `autoclave up --simulate`, which have no nvme-cli in PATH."""
    Fleet(tmp_path).ensure("sim-1", 1)
    file = tmp_path / "autoclave.conf"
    file.write_text('[nvme]\ndevice_spec = {"address": "0000:41:00.0", "clear_action": "zero"}\n')
    words = ["plan", "--simulated", "sim-1", "--data-dir", str(tmp_path), "--long", "-f", "json"]
    assert main([*words, "--config-file", str(file)]) == 0
    rows = {row["address"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["0000:41:00.0"]["action"] == "write_zeroes"
    assert rows["0000:42:00.0"]["refused"]
    assert main(words) == 0
    planned = {row["address"]: row["action"] for row in json.loads(capsys.readouterr().out)}
    assert planned["0000:42:00.0"] == "write_zeroes"


def test_an_unknown_simulated_host_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error lists the hosts that there are."""
    Fleet(tmp_path).ensure("sim-1", 1)
    assert main(["plan", "--simulated", "sim-9", "--data-dir", str(tmp_path)]) == 1
    assert "sim-9" in (said := capsys.readouterr().err)
    assert "sim-1" in said


@pytest.mark.parametrize("option", ["[nvme]\ndevice_spec", "[pci]\ndevice_spec"])
def test_a_missing_tool_hides_no_invalid_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    """The operator corrects the policy first, wherever `plan` is run."""
    file = tmp_path / "autoclave.conf"
    roots = "".join(f"{name}_root = {tmp_path}\n" for name in ("sysfs", "dev", "proc"))
    file.write_text(f'[agent]\ntools_path = {tmp_path}\n{roots}{option} = {{"vendor_idd": "1b36"}}\n')
    assert main(["plan", "--config-file", str(file)]) == 1
    assert "vendor_idd" in capsys.readouterr().err


def test_quicker_format_is_named_for_overwritten_drives(planner: Planner) -> None:
    """A drive with Format NVM and no Sanitize is overwritten by ``auto``: the plan names the shorter way."""
    rows = planner.rows()
    assert rows[ZEROED]["action"] == "write_zeroes"
    assert rows[ZEROED]["quicker"].startswith('format_crypto, with "clear_action": "format" in the entry')
    assert rows[ERASABLE]["quicker"] is None


def test_entry_with_format_selects_it(planner: Planner) -> None:
    """The same drive by an entry of its own."""
    config = planner._config.read_text()
    first = f'device_spec = {{"address": "{ZEROED}", "clear_action": "format"}}\n'
    planner._config.write_text(config.replace("[nvme]\n", f"[nvme]\n{first}"))
    row = planner.rows()[ZEROED]
    assert (row["action"], row["refused"], row["quicker"]) == ("format_crypto", [], None)
    assert row["estimate"].startswith("unknown: no drive of this model has been formatted")


@pytest.mark.parametrize(
    ("text", "does"),
    [
        ('[pci]\ndevice_spec = {"vendor_id": "1b36", "tag": "any"}\nreport_in_placement = true\n', "as its own"),
        ('[pci]\npassthrough_whitelist = [{"address": "0000:41:00.0"}]\n', "past Autoclave"),
        ("[pci]\ndevice_spec = {}\n", "past Autoclave"),
    ],
)
def test_a_drive_that_nova_matches_too_is_named(planner: Planner, tmp_path: Path, text: str, does: str) -> None:
    nova = tmp_path / "nova.conf"
    nova.write_text(f"[database]\nconnection = mysql://nova\n{text}")
    rows = json.loads(planner.ask("--long", "-f", "json", "--nova-config-file", str(nova)))
    [refused] = [row["refused"] for row in rows if row["address"] == ERASABLE]
    assert len(refused) == 1
    assert str(nova) in refused[0]
    assert does in refused[0]


@pytest.mark.parametrize(
    "text", ["", '[pci]\ndevice_spec = {"vendor_id": "8086"}\ndevice_spec = {"devname": "eth0"}\n']
)
def test_a_drive_that_nova_does_not_match_is_planned(planner: Planner, tmp_path: Path, text: str) -> None:
    nova = tmp_path / "nova.conf"
    nova.write_text(text)
    rows = json.loads(planner.ask("--long", "-f", "json", "--nova-config-file", str(nova)))
    assert [row["refused"] for row in rows if row["address"] == ERASABLE] == [[]]


def test_an_unreadable_nova_conf_is_named(planner: Planner, tmp_path: Path) -> None:
    nova = tmp_path / "nova.conf"
    nova.write_text('[pci]\ndevice_spec = {"vendor_id": 5}\n')
    said = planner.ask("--nova-config-file", str(nova), code=1)
    assert str(nova) in said
    assert "vendor_id" in said


def test_host_that_would_take_the_drives_is_named(planner: Planner) -> None:
    """On stderr, so that programs can read the rest; and once for all drives."""
    planner.ask()
    assert planner.setup == []
    (planner.host.paths.etc / "lvm/lvm.conf").write_text("devices {\n}\n")
    (planner.host.paths.etc / "mdadm/mdadm.conf").write_text("AUTO +all\n")

    rows = planner.rows()

    assert rows[ERASABLE]["refused"] == []
    lvm, md = planner.setup
    assert lvm.startswith(
        f"Host setup: LVM: it would activate volume groups on the drives of {ERASABLE}, {ZEROED}: set"
    )
    assert UNMATCHED not in lvm
    assert OWN_DISK not in lvm, "LVM must not be kept off what the host itself uses"
    assert md.startswith("Host setup: mdadm: it would assemble arrays")
    assert planner.ask("show", ERASABLE)
    assert planner.setup == [lvm, md]
