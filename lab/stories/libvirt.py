"""Real libvirt in the guest, and the tenant that it starts: a machine in the machine."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from autoclave.virt.guest import DomainType, GuestSpec, domain_name, domain_xml
from stories.facts import wait_for

DISK = Path(os.environ["LAB_BUILD"], "tenant.img")
"""A bootable disk whose system writes to every NVMe drive that it has, says so, and stays (``lab/tenant.c``)."""
END = "tenant: done"
"""Its last words."""
_RUN = Path("/run/tenant")
# The guest has neither systemd nor the users that libvirt's packages make.
_QEMU_CONF = """\
user = "root"
group = "root"
cgroup_controllers = []
security_driver = "none"
namespaces = []
stdio_handler = "file"
"""
# libvirt runs it before it takes anything for a guest, and waits for it.
_HOOK = f"""\
#!/bin/sh
[ "$2" = prepare ] || exit 0
cat >"{_RUN}/$1.told"
[ ! -e "{_RUN}/ask" ] ||
    /bin/busybox wget -q -O "{_RUN}/$1.answer" --header 'X-Auth-Token: admin' "$(cat "{_RUN}/ask")"
"""


class Hypervisor:
    """``libvirtd``."""

    def start(self) -> None:
        """Start it, and wait until it answers.

        :raises TimeoutError: it does not.
        """
        _RUN.mkdir()
        Path("/etc/libvirt/qemu.conf").write_text(_QEMU_CONF, encoding="ascii")
        hook = Path("/etc/libvirt/hooks/qemu")
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(_HOOK, encoding="ascii")
        hook.chmod(0o755)
        Path("/run/libvirt").mkdir(exist_ok=True)
        with open("/mnt/libvirtd.log", "wb") as log:
            subprocess.Popen(["libvirtd"], stdout=log, stderr=log)
        command = ["virsh", "-q", "-c", "qemu:///system", "list"]
        done = wait_for(lambda: subprocess.run(command, capture_output=True, text=True),
                        lambda done: done.returncode == 0, seconds=60, pause=0.2)  # fmt: skip
        if done.returncode:
            raise TimeoutError(f"libvirtd does not answer: {done.stderr}")

    def domain(self, instance: str, attach_handle_info: Mapping[str, Any]) -> Path:
        """Write the XML of a tenant's guest, with the PCI function of an accelerator request."""
        disk = _RUN / f"{instance}.disk"
        shutil.copy(DISK, disk)
        guest = GuestSpec(instance, "a tenant", vcpus=1, memory_mb=64, disk=disk, hostdevs=(attach_handle_info,))
        path = _RUN / f"{instance}.xml"
        xml = domain_xml(guest, domain_type=DomainType.QEMU, console_log=_console(instance))
        path.write_text(xml, encoding="utf-8")
        return path

    def run_tenant(self, instance: str, domain: Path, seconds: float = 60) -> str:
        """Have a tenant's guest do its work, pull its plug, and return what it wrote on its console.

        :raises subprocess.CalledProcessError: libvirt refused it.
        """
        self.virsh("create", str(domain))
        said = wait_for(lambda: said_by(_console(instance)), lambda said: END in said, seconds=seconds, pause=0.2)
        self.virsh("destroy", domain_name(instance))
        return said

    def told(self, instance: str) -> ElementTree.Element:
        """The domain as libvirt had it when it began to start the instance's guest."""
        return ElementTree.fromstring((_RUN / f"{domain_name(instance)}.told").read_text(encoding="utf-8"))

    def ask_before_guests(self, url: str) -> None:
        """Have libvirt ask *url* before it takes anything for a guest that it is to start."""
        (_RUN / "ask").write_text(url, encoding="ascii")

    def answer_before(self, instance: str) -> Any:
        """What was answered before libvirt took anything for the instance's guest."""
        return json.loads((_RUN / f"{domain_name(instance)}.answer").read_text(encoding="ascii"))

    def virsh(self, *arguments: str) -> str:
        """What ``virsh`` answers."""
        command = ["virsh", "-q", "-c", "qemu:///system", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}", flush=True)
            done.check_returncode()
        return done.stdout


def said_by(console: Path) -> str:
    """What a guest has written on its console."""
    return console.read_text(errors="replace").strip() if console.exists() else ""


def _console(instance: str) -> Path:
    return _RUN / f"{instance}.console"
