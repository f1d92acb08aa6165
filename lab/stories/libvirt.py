"""Real libvirt in the guest, and the tenant that it starts: a machine in the machine."""

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from autoclave.virt.hostdev import pci_hostdev

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
_DOMAIN = """\
<domain type="qemu" xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0">
  <name>{name}</name>
  <memory unit="MiB">64</memory>
  <vcpu>1</vcpu>
  <os><type arch="x86_64" machine="pc">hvm</type></os>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <disk type="file" device="floppy">
      <driver name="qemu" type="raw"/>
      <source file="{floppy}"/>
      <target dev="fda" bus="fdc"/>
      <readonly/>
      <boot order="1"/>
    </disk>
    <serial type="file"><source path="{console}"/><target port="0"/></serial>
    <memballoon model="none"/>
  </devices>
  <qemu:commandline>
    <qemu:arg value="-device"/>
    <qemu:arg value="isa-debug-exit,iobase=0xf4,iosize=1"/>
  </qemu:commandline>
</domain>
"""


class Hypervisor:
    """``libvirtd``, started when it is first needed."""

    def __init__(self) -> None:
        self._daemon: subprocess.Popen[bytes] | None = None

    def domain(self, name: str, attach_handle_info: Mapping[str, Any]) -> Path:
        """Write the XML of a tenant's domain, with the PCI function of an accelerator request."""
        _RUN.mkdir(exist_ok=True)
        text = _DOMAIN.format(
            name=name, floppy=Path(os.environ["LAB_BUILD"], "tenant.img"), console=_RUN / f"{name}.console"
        )
        ElementTree.register_namespace("qemu", "http://libvirt.org/schemas/domain/qemu/1.0")
        root = ElementTree.fromstring(text)
        hostdev = pci_hostdev(attach_handle_info)
        # Its disk is not what the tenant boots from, and SeaBIOS must find it all the same.
        ElementTree.SubElement(hostdev, "boot", order="2")
        devices = root.find("devices")
        assert devices is not None
        devices.append(hostdev)
        ElementTree.indent(root)
        path = _RUN / f"{name}.xml"
        path.write_text(ElementTree.tostring(root, encoding="unicode"), encoding="utf-8")
        return path

    def run_tenant(self, name: str, domain: Path, seconds: float = 60) -> str:
        """Have a tenant's guest run to its end, and return what it wrote on its console.

        :raises subprocess.CalledProcessError: libvirt refused it.
        :raises TimeoutError: it does not end.
        """
        self._start()
        self.virsh("create", str(domain))
        patience = time.monotonic() + seconds
        while name in self.virsh("list", "--name").split():
            if time.monotonic() > patience:
                self.virsh("destroy", name)
                raise TimeoutError(f"{name} did not end within {seconds} s")
            time.sleep(0.2)
        return (_RUN / f"{name}.console").read_text(errors="replace").strip()

    def virsh(self, *arguments: str) -> str:
        """What ``virsh`` answers."""
        command = ["virsh", "-q", "-c", "qemu:///system", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}", flush=True)
            done.check_returncode()
        return done.stdout

    def _start(self) -> None:
        if self._daemon is not None:
            return
        Path("/etc/libvirt/qemu.conf").write_text(_QEMU_CONF, encoding="ascii")
        Path("/run/libvirt").mkdir(exist_ok=True)
        with open("/mnt/libvirtd.log", "wb") as log:
            self._daemon = subprocess.Popen(["libvirtd"], stdout=log, stderr=log)
        for _ in range(100):
            done = subprocess.run(["virsh", "-q", "-c", "qemu:///system", "list"], capture_output=True)
            if done.returncode == 0:
                return
            time.sleep(0.2)
        raise TimeoutError(f"libvirtd does not answer: {done.stderr.decode()}")
