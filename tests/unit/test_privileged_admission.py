"""The privileged helper does what erasing needs, for nobody's sake more, and only with what root alone can change."""

import os
from pathlib import Path

import pytest
from erase_doubles import Watcher, by_programs, eraser

from autoclave.exceptions import HardwareError, ToolMissing
from autoclave.hardware.command import Commands
from autoclave.hardware.host import Deadline, HostPaths
from autoclave.hardware.nvme import controller_at
from autoclave.hardware.nvme_cli import NvmeCli
from autoclave.hardware.privileged import admission
from autoclave.rules.cleanup_policy import CleanupAction
from autoclave.rules.pci_address import PCIAddress
from autoclave.simulator.drive_spec import MIB, DriveSpec
from autoclave.simulator.host import SimulatedHost

SLOT = "0000:42:00.0"
GROUP = "20ZkCM-28Lt-cL9f-KD3i-xh0z-vUnO-xzkGBc"
_FILTER = '["a|^/dev/nvme0n1$|","r|.*|"]'
ALONE = f'devices{{filter={_FILTER}global_filter={_FILTER}hints="none"use_devicesfile=0}}'


def as_asked(argv: list[str], host: SimulatedHost) -> list[str]:
    """A command as the agent asks for it, from the one that was run on a simulated host."""
    words = [word.replace(f"{host.paths.dev}/", "/dev/") for word in argv]
    return [os.path.basename(words[0]), *words[1:]]


@pytest.mark.parametrize("action", list(CleanupAction))
def test_every_command_of_every_erase_is_let_pass(tmp_path: Path, action: CleanupAction) -> None:
    spec = DriveSpec(
        address=SLOT, serial="SIM1", size_bytes=4 * MIB, namespaces=2, namespace_management=True,
        crypto=True, block=True, sanitize_seconds=0.1, format_crypto=True,
    )  # fmt: skip
    host = SimulatedHost.create(tmp_path / "host", "h1", [spec])
    watcher = Watcher()
    controller = controller_at(host.paths, PCIAddress.parse(SLOT))

    eraser(by_programs(host.paths)).erase(controller, action, watcher)

    asked = [as_asked(argv, host) for argv in watcher.argvs]
    assert len(asked) > 3
    for argv in asked:
        admission.command(argv)


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["sh", "-c", "id"],
        ["/usr/sbin/nvme", "version"],
        ["../sbin/nvme", "version"],
        ["setpriv", "sh"],
        ["nvme"],
        ["nvme", "admin-passthru", "/dev/nvme0"],
        ["nvme", "fw-download", "/dev/nvme0", "--fw=/etc/shadow"],
        ["nvme", "id-ctrl", "/etc/shadow"],
        ["nvme", "id-ctrl", "/dev/nvme0/../sda"],
        ["nvme", "id-ctrl", "/dev/nvme0\n"],
        ["nvme", "id-ctrl", "/dev/nvme0", "-o", "json", "--output-format=json"],
        ["nvme", "id-ctrl /dev/nvme0"],
        ["nvme", "format", "/dev/nvme0n1", "-n", "1", "--lbaf=0", "--ses=1", "--force"],
        ["nvme", "format", "/dev/nvme0", "-n", "1", "--reset", "--force"],
        ["nvme", "delete-ns", "/dev/nvme0", "-n", "1", "--force"],
        ["shred", "--iterations=0", "--zero", "--verbose", "/dev/sda"],
        ["shred", "--iterations=0", "--zero", "--verbose", "/dev/nvme0n1", "/dev/nvme1n1"],
        ["shred", "--iterations=0", "--zero", "--verbose", "/etc/passwd"],
        ["shred", "--remove", "/dev/nvme0n1"],
        ["vgchange", "-an"],
        ["vgchange", "-an", "vg0"],
        ["vgchange", "-an", "--select", f"vg_uuid={GROUP}"],
        ["vgchange", "-an", "--select", "vg_name=root", "--config", ALONE],
        ["vgchange", "-an", "--select", f"vg_uuid={GROUP}||vg_name=root", "--config", ALONE],
        ["vgchange", "-ay", "--select", f"vg_uuid={GROUP}", "--config", ALONE],
        ["vgchange", "-an", "--select", f"vg_uuid={GROUP}", "--config", ALONE.replace("nvme0n1", "sda")],
        ["vgchange", "-an", "--select", f"vg_uuid={GROUP}", "--config", ALONE.replace("nvme0n1", "nvme.*")],
        ["vgchange", "-an", "--select", f"vg_uuid={GROUP}", "--config", f"{ALONE}global{{etc=/tmp}}"],
        ["vgs", "--noheadings", "-o", "vg_name", "--select", f"vg_uuid={GROUP}", "--config", ALONE],
        ["lvmconfig", "--typeconfig", "full", "-f", "/etc/shadow"],
        ["mdadm", "--stop", "--scan"],
        ["mdadm", "--stop", "/dev/md/root"],
        ["mdadm", "--stop", "/dev/sda"],
        ["mdadm", "--zero-superblock", "/dev/nvme0n1"],
        ["multipath", "-F"],
        ["udisksctl", "dump"],
    ],
)
def test_no_other_command_is_run(argv: list[str]) -> None:
    with pytest.raises(HardwareError, match="helper refuses to run"):
        admission.command(argv)


def test_volume_group_on_nvme_drives_is_let_pass() -> None:
    this = ["--select", f"vg_uuid={GROUP}", "--config", ALONE]
    admission.command(["vgs", "--noheadings", "-o", "vg_missing_pv_count", *this])
    admission.command(["vgchange", "-an", *this])


@pytest.mark.parametrize(
    "path", ["/dev/sda", "/dev/nvme0", "/dev/nvme0n1p1", "/dev/nvme0n1/../sda", "/dev/../dev/nvme0n1", "nvme0n1", ""]
)
def test_nothing_but_the_block_device_of_a_namespace_is_held(path: str) -> None:
    with pytest.raises(HardwareError, match="not a device node of this kind"):
        admission.disk(path)


@pytest.mark.parametrize("path", ["/etc/shadow", "/dev/mem", "/dev/nvme-fabrics", "/dev/vfio/vfio", "/dev/vfio/../mem"])
def test_users_are_looked_for_only_of_nvme_nodes(path: str) -> None:
    with pytest.raises(HardwareError, match="not a device node of this kind"):
        admission.nodes(["/dev/nvme0n1", path])


def test_nodes_of_every_kind_that_lead_to_a_drive_may_be_asked_about() -> None:
    paths = [
        "/dev/nvme0", "/dev/nvme10n2", "/dev/nvme10n2p1", "/dev/ng10n2",
        "/dev/vfio/12", "/dev/vfio/noiommu-0", "/dev/vfio/devices/vfio3",
    ]  # fmt: skip
    assert admission.nodes(paths) == [Path(path) for path in paths]


@pytest.mark.parametrize(
    "address", ["", "0000:81:00", "0000:81:00.8", "0000:81:00.0/../../etc", "../0000:81:00.0", "0000:81:00.0\n", "*"]
)
def test_only_pci_functions_are_asked_for_their_serials(address: str) -> None:
    with pytest.raises(HardwareError, match="refuses to inspect"):
        admission.function(address)


@pytest.mark.parametrize("address", ["0000:81:00.0", "10000:e1:00.7"])
def test_the_kernels_spelling_of_a_function_may_be_asked_about(address: str) -> None:
    assert str(admission.function(address)) == address


@pytest.mark.parametrize("name", ["sh", "/usr/sbin/nvme", "../nvme"])
def test_only_the_known_tools_are_looked_for(name: str) -> None:
    with pytest.raises(HardwareError, match="refuses to look for"):
        admission.tool(name)


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_tool_in_a_directory_that_others_can_write_to_is_not_run(tmp_path: Path) -> None:
    tool = executable(tmp_path / "nvme")
    with pytest.raises(ToolMissing, match=r"a user other than root can change /"):
        admission.RootsCommands(HostPaths(tools=(tool.parent,)), {}).run(["nvme"], deadline=Deadline.after(60))


def test_a_link_of_roots_to_a_tool_of_somebody_else_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Everything here counts as root's alone but the directory that the link leads to.
    executable(tmp_path / "theirs/nvme")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvme").symlink_to("../theirs/nvme")
    real = os.lstat

    def lstat(path: str | Path) -> os.stat_result:
        found = list(real(path))
        mode = found[0] if Path(path).is_symlink() else found[0] & ~0o022
        owner = 1000 if Path(path) == tmp_path / "theirs" else 0
        return os.stat_result([mode, *found[1:4], owner, *found[5:]])

    monkeypatch.setattr(admission.os, "lstat", lstat)
    with pytest.raises(ToolMissing, match=f"a user other than root can change {tmp_path}/theirs"):
        admission.RootsCommands(HostPaths(tools=(tmp_path / "bin",)), {}).find("nvme")
    (tmp_path / "theirs").rename(tmp_path / "ours")
    (tmp_path / "bin/nvme").unlink()
    (tmp_path / "bin/nvme").symlink_to(tmp_path / "ours/nvme")
    assert admission.RootsCommands(HostPaths(tools=(tmp_path / "bin",)), {}).find("nvme") == f"{tmp_path}/bin/nvme"


def test_the_systems_own_tools_are_roots() -> None:
    assert admission.RootsCommands(HostPaths(), {}).find("setpriv")


def test_nothing_of_the_agents_environment_reaches_a_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    executable(tmp_path / "shred").write_text("#!/bin/sh\nenv\n")

    commands = Commands(HostPaths(tools=(tmp_path,)), {})

    said = commands.run(["shred"], deadline=Deadline.after(60)).stdout
    variables = dict(line.split("=", 1) for line in said.splitlines())
    assert variables.keys() - {"PWD", "SHLVL", "_", "OLDPWD"} == {"LC_ALL", "PATH"}
    assert variables["PATH"] == f"{tmp_path}:/usr/sbin:/sbin:/usr/bin:/bin"


def test_asking_for_the_version_is_let_pass(tmp_path: Path) -> None:
    host = SimulatedHost.create(tmp_path / "host", "h1", [])
    watcher = Watcher()

    NvmeCli(Commands(by_programs(host.paths)), command_timeout=30, tools=watcher).version()

    [argv] = watcher.argvs
    admission.command(as_asked(argv, host))


@pytest.mark.parametrize(
    "argv", [[], ["/bin/sh"], ["clear"], ["/etc/autoclave/clear.d/../sh"], ["/etc/autoclave/clear.d/x", "a\0b"]]
)
def test_only_programs_in_their_directory_are_admitted(argv: list[str]) -> None:
    with pytest.raises(HardwareError, match="the privileged helper does not run"):
        admission.program(argv)
    admission.program(["/etc/autoclave/clear.d/x", "--all", "$(id)"])


@pytest.mark.parametrize(
    "text", ["", "x", "5D0E64C1-6a1c-4a3b-8b53-0d7c1f2a9e44", "5d0e64c1-6a1c-4a3b-8b53-0d7c1f2a9e44\n"]
)
def test_only_uuids_name_devices(text: str) -> None:
    with pytest.raises(HardwareError, match="does not take"):
        admission.device(text)


@pytest.mark.parametrize(("name", "text"), [("reset", "0"), ("reset", ""), ("remove", "1"), ("../x/reset", "1")])
def test_only_what_a_method_writes_is_admitted(name: str, text: str) -> None:
    with pytest.raises(HardwareError, match="does not write"):
        admission.attribute(name, text)
