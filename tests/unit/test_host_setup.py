"""What a host's own tools would do with the disk of a guest is read from their settings, and never guessed."""

from dataclasses import replace
from pathlib import Path

import pytest

from autoclave.hardware.command import Commands
from autoclave.hardware.host import HostPaths
from autoclave.hardware.host_setup import HostSetup
from autoclave.rules.host_setup import lvm_accepts, md_assembles, multipath_takes, names_of, udisks_ignores
from autoclave.rules.pci_address import PCIAddress

ONE, TWO = PCIAddress.parse("0000:41:00.0"), PCIAddress.parse("0000:42:00.0")
TOOLS = ("lvmconfig", "mdadm", "multipath", "udisksctl")
ACCEPTS_ALL = r'global_filter=["a|.*|"]\nfilter=["a|.*|"]\nuse_devicesfile=0'


@pytest.mark.parametrize(
    ("said", "accepts"),
    [
        ('["a|.*|"]', True),
        ('"a|.*|"', True),
        ('"r|.*|"', False),
        ("[]", True),
        (r'["r|^/dev/disk/by-path/pci-0000:41:00\\.0-nvme-|"]', False),
        (r'["r|^/dev/disk/by-path/pci-0000:42:00\\.0-nvme-|"]', True),
        (r'["r|^/dev/disk/by-path/pci-0000:41:00\\.0-nvme-|", "a|.*|"]', True),  # its other name is accepted
        ('["a|^/dev/sda|", "r|.*|"]', False),
        ('["r|^/dev/nvme|"]', False),
        ('["r|^/dev/nvme0|"]', True),  # it may have another number
        ('["r(/nvme)"]', False),
        ('["r[/nvme]"]', False),
        ('["r{/nvme}"]', False),
    ],
)
def test_lvm_filter_decides_as_lvm_does(said: str, accepts: bool) -> None:
    assert lvm_accepts(said, names_of(ONE)) is accepts


@pytest.mark.parametrize("said", ["", "5", "{}", '["x|.*|"]', '["a|.*"]', '["a"]', "[5]", '["r|(|"]', "[["])
def test_odd_lvm_filter_is_an_error(said: str) -> None:
    with pytest.raises(ValueError, match=r"filter|pattern"):
        lvm_accepts(said, names_of(ONE))


@pytest.mark.parametrize(
    ("text", "assembles"),
    [
        ("", True),
        ("AUTO -all", False),
        ("auto -1.x -all", False),
        ("AUTO +1.x -all", True),
        ("AUTO homehost -all", True),  # a guest can choose the name of the host
        ("AUTO -1.x", True),
        ("# AUTO -all", True),
        ("HOMEHOST <system>\nAUTO # of this host\n  -all\nMAILADDR root", False),
        ("AUTO +all\nAUTO -all", True),  # mdadm ignores the second
        ("AUTOMATIC -all", True),
    ],
)
def test_md_assembly_follows_the_first_auto_line(text: str, assembles: bool) -> None:
    assert md_assembles(text) is assembles


@pytest.mark.parametrize(
    ("text", "takes"),
    [
        ("", True),
        ('blacklist {\n    devnode "^nvme"\n}', False),
        ('blacklist { devnode "^sd" }', True),
        ('blacklist { devnode "!^sd[a-z]" }', False),
        ('blacklist { devnode "*" }', False),
        ('blacklist {\n  device {\n    vendor "X"\n  }\n  devnode ^nvme # ours\n}', False),
        ('# blacklist { devnode "^nvme" }', True),
        ('blacklist { devnode ".*" }\nblacklist_exceptions { devnode "^nvme" }', True),
        ('devices { device { devnode "^nvme" } }', True),
    ],
)
def test_multipath_leaves_what_is_blacklisted(text: str, takes: bool) -> None:
    assert multipath_takes(text) is takes


@pytest.mark.parametrize(
    ("rules", "ignores"),
    [
        ("", False),
        ('SUBSYSTEM=="block", KERNELS=="0000:41:00.0", ENV{UDISKS_IGNORE}="1", ENV{SYSTEMD_READY}="0"', True),
        ('KERNELS=="0000:40:00.0|0000:41:00.?", \\\n  ENV{UDISKS_IGNORE}="1"', True),
        ('KERNELS=="0000:42:00.0", ENV{UDISKS_IGNORE}="1"', False),
        ('KERNEL=="nvme*", KERNELS=="0000:42:00.0", ENV{UDISKS_IGNORE}="1"', False),
        ('KERNEL=="nvme*", KERNELS!="0000:41:00.0", ENV{UDISKS_IGNORE}="1"', False),
        ('KERNEL=="nvme*", KERNELS!="0000:42:00.0", ENV{UDISKS_IGNORE}="1"', True),
        ('KERNEL=="nvme*", ENV{ID_SERIAL}=="OWN", ENV{UDISKS_IGNORE}="1"', False),
        ('ACTION=="add|change", KERNEL=="nvme*", ENV{UDISKS_IGNORE}="1"', True),
        ('KERNEL=="nvme*", ENV{UDISKS_IGNORE}="1"', True),
        ('# KERNEL=="nvme*", ENV{UDISKS_IGNORE}="1"', False),
        ('KERNEL=="nvme*", ENV{UDISKS_IGNORE}="0"', False),
        ('KERNEL=="nvme*", ENV{UDISKS_IGNORE}=="1", RUN+="x"', False),
        ('KERNEL!="nvme*", ENV{UDISKS_IGNORE}="1"', False),
    ],
)
def test_udisks_ignores_what_a_rule_names(rules: str, ignores: bool) -> None:
    assert udisks_ignores(rules, ONE) is ignores


class Host:
    """A host on which none of the tools is installed."""

    def __init__(self, root: Path) -> None:
        self.root, self.etc, self.bin = root, root / "etc", root / "bin"
        self.etc.mkdir()
        self.bin.mkdir()
        for name in TOOLS:
            (self.bin / name).touch(mode=0o644)
        self.paths = HostPaths(etc=self.etc, tools=(self.bin,))

    def install(self, name: str, script: str = "exit 1") -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.bin / name).chmod(0o755)

    def write(self, name: str, text: str) -> None:
        (self.etc / name).parent.mkdir(parents=True, exist_ok=True)
        (self.etc / name).write_text(text)

    def lacks(self, *slots: PCIAddress, timeout: float = 30) -> list[str]:
        return HostSetup(self.paths, Commands(self.paths), slots or (ONE, TWO), timeout).lacks()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_absent_tools_are_not_asked_about(host: Host) -> None:
    """Their files are not read either: what cannot be read is no trouble then."""
    (host.etc / "multipath.conf").mkdir()

    assert host.lacks() == []


def test_host_without_drives_for_guests_lacks_nothing(host: Host) -> None:
    for name in TOOLS:
        host.install(name)

    assert HostSetup(host.paths, Commands(host.paths), (), 30).lacks() == []


def test_every_tool_that_takes_drives_has_its_line(host: Host) -> None:
    host.install("lvmconfig", f"printf '{ACCEPTS_ALL}\\n'")
    for name in TOOLS[1:]:
        host.install(name)

    lvm, md, multipath, udisks = host.lacks()

    assert lvm.startswith("LVM: it would activate volume groups on the drives of 0000:41:00.0, 0000:42:00.0: set")
    assert md.startswith("mdadm: it would assemble arrays")
    assert 'blacklist { devnode "^nvme" }' in multipath
    assert 'ENV{UDISKS_IGNORE}="1"' in udisks


def test_host_that_is_set_up_lacks_nothing(host: Host) -> None:
    """By the settings that the documentation gives."""
    host.install("lvmconfig", "printf 'global_filter=[\"a|.*|\"]\\nuse_devicesfile=1\\n'")
    for name in TOOLS[1:]:
        host.install(name)
    host.write("lvm/devices/system.devices", "")
    host.write("mdadm/mdadm.conf", "AUTO -all\n")
    host.write("multipath.conf", 'blacklist {\n    devnode "^nvme"\n}\n')
    rule = 'SUBSYSTEM=="block", KERNELS=="{}", ENV{{UDISKS_IGNORE}}="1", ENV{{SYSTEMD_READY}}="0"\n'
    host.write("udev/rules.d/61-passthrough.rules", rule.format(ONE))
    host.write("udev/rules.d/62-passthrough.rules", rule.format(TWO))

    assert host.lacks() == []


def test_only_the_slots_that_are_taken_are_named(host: Host) -> None:
    host.install(
        "lvmconfig",
        r"""cat <<'.'
global_filter=["r|pci-0000:41:00\\.0-nvme-|"]
.""",
    )

    [line] = host.lacks()

    assert str(ONE) not in line
    assert str(TWO) in line


def test_filter_of_commands_keeps_lvm_off_as_well(host: Host) -> None:
    host.install("lvmconfig", """echo 'global_filter=["a|.*|"]'; echo 'filter=["r|/nvme|"]'""")

    assert host.lacks() == []


def test_devices_file_that_is_missing_leaves_the_filter(host: Host) -> None:
    """LVM without the file uses every device."""
    host.install("lvmconfig", """echo 'global_filter=["a|.*|"]'; echo 'use_devicesfile=1'""")

    assert "use_devicesfile" in host.lacks()[0]


def test_old_lvm_without_a_devices_file_is_understood(host: Host) -> None:
    said = (
        """echo 'global_filter=["r|/nvme|"]'; echo 'Configuration node devices/use_devicesfile not found' >&2; exit 5"""
    )
    host.install("lvmconfig", said)

    assert host.lacks() == []


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo '  Parse error at byte 5' >&2; exit 5", "lvmconfig exited with 5: Parse error at byte 5"),
        ("echo 'global_filter=what'", "the filter 'what' is not understood: Expecting value"),
        ("echo 'global_filter=[\"r|(|\"]'", "pattern '(' is not understood"),
        ("exec sleep 60", "ran past its deadline"),
    ],
)
def test_lvm_that_does_not_answer_is_a_line(host: Host, script: str, words: str) -> None:
    host.install("lvmconfig", script)

    [line] = host.lacks(timeout=0.5)

    assert line.startswith("LVM: cannot determine whether it takes the guests' drives: ")
    assert words in line


@pytest.mark.parametrize(
    ("tool", "file"),
    [("mdadm", "mdadm.conf"), ("multipath", "multipath.conf"), ("udisksctl", "udev/rules.d/61-x.rules")],
)
def test_file_that_cannot_be_read_is_a_line(host: Host, tool: str, file: str) -> None:
    host.install(tool)
    (host.etc / file).mkdir(parents=True)

    [line] = host.lacks()

    unreadable = f"cannot read {host.etc / file}: Is a directory"
    assert f"cannot determine whether it takes the guests' drives: {unreadable}" in line


def test_bytes_that_are_no_text_are_read(host: Host) -> None:
    host.install("multipath")
    (host.etc / "multipath.conf").write_bytes(b'\xff\xfe\x00 {\nblacklist { devnode "^nvme" }\n')

    assert host.lacks() == []


def test_many_slots_are_counted(host: Host) -> None:
    host.install("lvmconfig", f"printf '{ACCEPTS_ALL}\\n'")
    slots = [replace(ONE, bus=bus) for bus in range(1, 8)]

    assert "0000:04:00.0 and 3 more" in host.lacks(*slots)[0]
