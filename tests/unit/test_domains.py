"""What virsh says of the guests' PCI functions, by a stand-in for the command itself."""

from collections.abc import Callable
from pathlib import Path

import pytest

from autoclave.exceptions import ToolFailed, ToolGarbage
from autoclave.hardware.host import HostPaths
from autoclave.rules.pci_address import PCIAddress
from autoclave.virt.domains import Domain, Virsh

RUNNING, OFF, GONE = (f"{digit}0000000-0000-4000-8000-000000000000" for digit in "123")
HOSTDEV = """\
<domain type='kvm'><name>web-1</name><devices>
  <disk type='file'><source file='/x'/><address type='pci' domain='0x0000' bus='0x07' slot='0x00' function='0x0'/>
  </disk>
  <hostdev mode='subsystem' type='pci' managed='yes'><driver name='vfio'/>
    <source><address domain='0x0000' bus='0x41' slot='0x00' function='0x0'/></source>
    <address type='pci' domain='0x0000' bus='0x05' slot='0x00' function='0x0'/></hostdev>
  <hostdev mode='subsystem' type='usb'><source><address bus='1' device='2'/></source></hostdev>
  <interface type='hostdev'><source><address type='pci' domain='0x0000' bus='0x42' slot='0x1f' function='0x7'/></source>
  </interface></devices></domain>
"""
DISK = """\
<domain type='kvm'><name>db-1</name><devices>
  <disk type='nvme'><source type='pci' namespace='1'><address domain='0x10000' bus='0x01' slot='0x00' function='0x0'/>
  </source></disk></devices></domain>
"""

MakeVirsh = Callable[[str], Virsh]


@pytest.fixture
def virsh(tmp_path: Path) -> MakeVirsh:
    """Makes the command out of a shell script; ``$arguments`` are those after the connection."""

    def make(script: str) -> Virsh:
        tool = tmp_path / "virsh"
        head = '#!/bin/sh\n[ "$1 $2 $3" = "--readonly --connect qemu:///system" ] || exit 9\nshift 3\narguments="$*"\n'
        tool.write_text(head + script)
        tool.chmod(0o755)
        found = Virsh.of(HostPaths(tools=(tmp_path,)))
        assert found is not None
        return found

    return make


def answers(**documents: str) -> str:
    cases = "".join(f"'dumpxml '*{uuid}) cat <<'XML'\n{text}XML\n;;\n" for uuid, text in documents.items())
    return (
        f"case \"$arguments\" in\n'list --uuid') echo {RUNNING};;\n"
        f"'list --all --uuid') printf '{RUNNING}\\n{OFF}\\n\\n';;\n{cases}"
        '*) echo "no $arguments" >&2; exit 1;;\nesac\n'
    )


def test_guests_are_seen_with_every_function_they_were_given_whether_they_run_or_not(virsh: MakeVirsh) -> None:
    given, nvme = PCIAddress.parse("0000:41:00.0"), PCIAddress.parse("10000:01:00.0")
    assert virsh(answers(**{RUNNING: HOSTDEV, OFF: DISK})).all() == [
        Domain(RUNNING, "web-1", True, frozenset({given, PCIAddress.parse("0000:42:1f.7")})),
        Domain(OFF, "db-1", False, frozenset({nvme})),
    ]


def test_a_function_that_a_running_guest_gets_at_its_next_start_is_given(virsh: MakeVirsh) -> None:
    now, later = HOSTDEV, HOSTDEV.replace("bus='0x41'", "bus='0x43'")
    script = (
        f"case \"$arguments\" in\n*list*) echo {RUNNING};;\n'dumpxml {RUNNING}') cat <<'XML'\n{now}XML\n;;\n"
        f"'dumpxml --inactive {RUNNING}') cat <<'XML'\n{later}XML\n;;\nesac\n"
    )
    [domain] = virsh(script).all()
    assert sorted(map(str, domain.functions)) == ["0000:41:00.0", "0000:42:1f.7", "0000:43:00.0"]


def test_a_host_without_guests_has_none(virsh: MakeVirsh) -> None:
    assert virsh("exit 0\n").all() == []


def test_a_libvirt_that_does_not_answer_is_an_error_in_its_own_words(virsh: MakeVirsh) -> None:
    with pytest.raises(ToolFailed, match=r"virsh list --uuid failed: error: failed to connect"):
        virsh('echo "error: failed to connect" >&2; exit 1\n').all()


def test_a_guest_that_cannot_be_read_is_an_error_as_long_as_it_is_there(virsh: MakeVirsh) -> None:
    with pytest.raises(ToolFailed, match=f"no dumpxml {OFF}"):
        virsh(answers(**{RUNNING: HOSTDEV})).all()


def test_a_guest_that_ends_while_it_is_read_is_none(virsh: MakeVirsh, tmp_path: Path) -> None:
    once = f"echo {GONE} >> {tmp_path}/asked"
    script = (
        f"case \"$arguments\" in\n'list --uuid') ;;\n'list --all --uuid') [ -e {tmp_path}/asked ] || echo {GONE};;\n"
        f"*) {once}; exit 1;;\nesac\n"
    )
    assert virsh(script).all() == []


@pytest.mark.parametrize(
    "text",
    [
        "not XML",
        "<domain><devices><x><source><address bus='0x41' slot='0' function='0'/></source></x></devices></domain>",
        "<domain><devices><x><source><address domain='0' bus='' slot='0'/></source></x></devices></domain>",
    ],
)
def test_a_description_that_cannot_be_understood_is_an_error(virsh: MakeVirsh, text: str) -> None:
    with pytest.raises(ToolGarbage, match=RUNNING):
        virsh(answers(**{RUNNING: f"{text}\n", OFF: DISK})).all()


def test_a_host_without_virsh_has_nothing_to_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoclave.hardware.command._SYSTEM_DIRECTORIES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Virsh.of(HostPaths()) is None
