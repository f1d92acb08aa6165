"""The host in the guest: its drives, the service that runs on it, and what instances do to both."""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from stories.clients import BIN, DATA_DIR, Cloud, Service
from stories.drives import Drive, drives
from stories.facts import Facts, wait_for
from stories.libvirt import Hypervisor

SHARE = Path("/mnt")
"""Outlives the guest; the rest of its file system does not."""
LOG = SHARE / "autoclave.log"
CONFIG = Path("/run/autoclave.conf")
PROVIDER_CONFIG = Path("/run/provider_config")
HOST_NAME = "lab-host"
PROFILE = "drive"
RESOURCE_CLASS = "CUSTOM_NVME_1B36_0010"
MARKED = "LAB0001"
MARK = "CUSTOM_FOR_INSTANCES"
"""What the provider configuration says of that drive, and of no other."""
REBIND_TIMEOUT = 8
STALL_TIMEOUT = 4
_CONFIG = """\
[agent]
enabled_drivers = nvme_driver, pci_driver
resource_provider_name = {HOST_NAME}
periodic_interval = 10
rebind_timeout = {REBIND_TIMEOUT}

[nvme]
device_spec = [
    {{"address": "{crypto}", "clear_action": "sanitize", "clear_strategy": "crypto"}},
    {{"address": "{block}", "clear_action": "sanitize", "clear_strategy": "block"}},
    {{"vendor_id": "1b36", "product_id": "0010"}}]
poll_interval = 0.5
stall_timeout = {STALL_TIMEOUT}

[pci]
passthrough_whitelist = [
    {{"address": "{first}", "managed": false}},
    {{"address": "{second}", "managed": false}}]
device_spec = {{"address": "{once}", "one_time_use": true}}
alias = {{"name": "once", "vendor_id": "8086", "product_id": "5845"}}

[compute]
enabled = {instances}
virt_type = qemu
shutdown_timeout = 1
provider_config_location = {PROVIDER_CONFIG}
"""
_MARK = """\
meta: {{schema_version: '1.0'}}
providers:
  - identification: {{name: "{provider}"}}
    traits: {{additional: [{MARK}]}}
"""


@dataclass
class Visit:
    """An instance that has a drive.

    :param device: the device's uuid.
    :param info: the accelerator request's ``attach_handle_info``.
    """

    drive: Drive
    device: str
    instance: str
    info: dict[str, Any]


class Host:
    """What the stories have in common."""

    def __init__(self) -> None:
        self.facts = Facts()
        self.drives = drives()
        self.hypervisor = Hypervisor()
        self._service: Service | None = None
        CONFIG.write_text(
            _CONFIG.format(
                HOST_NAME=HOST_NAME,
                REBIND_TIMEOUT=REBIND_TIMEOUT,
                STALL_TIMEOUT=STALL_TIMEOUT,
                PROVIDER_CONFIG=PROVIDER_CONFIG,
                crypto=self.drives["LABCRYPT"].address,
                block=self.drives["LABBLOCK"].address,
                first=self.drives["LABVF"].virtual_function(1),
                second=self.drives["LABVF"].virtual_function(2),
                once=self.drives["LABONCE"].address,
                # An ordinary user would need libvirt's permission to run guests.
                instances=os.environ["LAB_BOOT"] == "1",
            ),
            encoding="ascii",
        )
        PROVIDER_CONFIG.mkdir(mode=0o755)
        provider = f"{HOST_NAME}_{self.drives[MARKED].address.upper()}"
        (PROVIDER_CONFIG / "mark.yaml").write_text(_MARK.format(provider=provider, MARK=MARK), encoding="ascii")

    @cached_property
    def cloud(self) -> Cloud:
        """The clients of the service that :meth:`start` started."""
        return Cloud()

    @property
    def service(self) -> Service:
        """The running service."""
        assert self._service is not None, "nothing was started"
        return self._service

    def start(self, user: str = "root") -> None:
        """Start ``autoclave up``, and wait until it is healthy."""
        self.facts.say(f"autoclave up, as {user}")
        service = self._service = Service(CONFIG, LOG, user)
        healthy = wait_for(lambda: service.healthy() or service.ended, bool, seconds=400, pause=0.5)
        healthy = healthy and not service.ended
        self.facts.demand("the service is healthy", healthy, "/healthcheck answers 200" if healthy else "no answer")

    def let_run(self, user: str) -> None:
        """Let an ordinary user run the service, with a helper that is root, as the documentation says."""
        helper = BIN / "autoclave-privileged"
        with CONFIG.open("a", encoding="ascii") as config:
            config.write(f"\n[autoclave_privileged]\nhelper_command = sudo -n {helper}\n")
        Path("/etc/sudoers.d/autoclave").write_text(f"{user} ALL=(root) NOPASSWD: {helper}\n", encoding="ascii")
        run("chown", "-R", user, DATA_DIR)
        # The guest's Python is this machine's, which may be in root's home.
        for directory in Path(os.path.realpath(sys.executable)).parents:
            directory.chmod(directory.stat().st_mode | 0o111)

    def wait_for_devices(self) -> dict[str, dict[str, Any]]:
        """All devices by PCI address, once the first discovery is through."""
        return wait_for(self.cloud.devices, bool, seconds=60, pause=0.5)

    def stop(self) -> None:
        """End the service as systemd does, if it runs, and show what it said last if a fact failed."""
        if self._service is not None and not self._service.ended:
            code = self._service.stop(60)
            self.facts.check("the service ends when it is told to", code == 0, f"exit code {code}")

    def clear_up(self) -> None:
        """Leave nothing running; show what the service said last if something went wrong."""
        if self._service is not None and not self._service.ended:
            self._service.kill()
        if self.facts.failed or sys.exc_info()[0]:
            lines = LOG.read_text(errors="replace").splitlines()[-80:]
            print("\n== the end of the service's log", *lines, sep="\n", flush=True)

    def bind(self, drive: Drive, profile: str = PROFILE) -> Visit:
        """Have an instance claim the drive in Placement, as Nova's scheduler would, and bind it.

        :raises SystemExit: it is not bound.
        """
        row = self.cloud.devices()[drive.address]
        instance = str(uuid.uuid4())
        self.cloud.claim(instance, row["rp_uuid"], row["resource_class"])
        request = self.cloud.make_request(profile)
        self.cloud.bind(request, hostname=HOST_NAME, instance_uuid=instance, device_rp_uuid=row["rp_uuid"])
        bound = wait_for(lambda: self.cloud.request(request), lambda arq: arq["state"] != "BindStarted",
                         seconds=60, pause=0.3)  # fmt: skip
        if bound["state"] != "Bound":
            sys.exit(f"FAIL {drive.serial} is not bound: {bound}")
        return Visit(drive, row["uuid"], instance, bound["attach_handle_info"])

    def wait_until_usable(self, drive: Drive) -> None:
        """Wait for the host's own driver to have a drive.

        :raises SystemExit: it does not get it.
        """
        usable = wait_for(lambda: drive.usable, bool, seconds=20, pause=0.2)
        self.facts.demand(f"the nvme driver has {drive.serial}", usable, f"its driver is {drive.driver}")

    def give_back(self, visit: Visit) -> None:
        """The instance is deleted: its requests first, then its allocation, as Nova does."""
        self.cloud.delete_requests(visit.instance)
        self.cloud.drop_claim(visit.instance)

    def end_of_cleaning(self, device: str) -> dict[str, Any]:
        """Wait until a device is available or in error, and show how it got there."""
        return self.watch(device, lambda seen: seen["device_state"] in ("available", "error"))

    def watch(self, device: str, until: Callable[[dict[str, Any]], bool], seconds: float = 120) -> dict[str, Any]:
        """Show each step of a device's cleaning until *until*, and return what was seen last."""
        shown: list[str] = []

        def look() -> dict[str, Any]:
            seen = self.cloud.device(device)
            progress = seen["progress"]
            stalled = " (stalled)" if progress["stalled"] else ""
            line = f"{seen['device_state']} {progress['percent']} {progress['step']}{stalled}"
            if shown[-1:] != [line]:
                shown.append(line)
                print(f"     {line}", flush=True)
            return seen

        return wait_for(look, until, seconds=seconds, pause=0.1)

    def clean_again(self, device: str) -> None:
        """Have the operator clean a device that is in error, and wait until the service has begun to.

        :raises SystemExit: it does not.
        """
        before = len(self.cloud.history(device))
        self.cloud.clean(device)
        # Not by its state: a cleaning that is refused at once is back in error before anybody looks. That it was asked
        # for is written before the agent begins.
        begun = wait_for(
            lambda: [each["event"] for each in self.cloud.history(device)[before:] if each["event"] != "ask_to_clean"],
            bool,
            seconds=30,
            pause=0.1,
        )
        self.facts.demand("the operator's clean has begun", bool(begun), begun)

    def reserved(self, device: str) -> int:
        """What Placement holds back of the device's one unit."""
        return self.cloud.inventory(self.cloud.device(device)["rp_uuid"])["reserved"]

    def check_out_of_reach(self, what: str, device: str, *reasons: str) -> None:
        """The device is in error for a reason that has all of *reasons* in it, and Placement does not offer it."""
        seen = self.end_of_cleaning(device)
        reason = seen["state_reason"] or ""
        self.facts.check(
            f"{what}: in error, and why",
            seen["device_state"] == "error" and all(word in reason for word in reasons),
            f"{seen['device_state']}: {reason}",
        )
        reserved = wait_for(lambda: self.reserved(device), lambda n: n == 1, seconds=10, pause=0.3)
        self.facts.check(f"{what}: not offered", reserved == 1, f"total 1, reserved {reserved}")

    def check_offered(self, what: str, device: str) -> None:
        """The device ends available, and Placement offers it."""
        seen = self.end_of_cleaning(device)
        state = f"{seen['device_state']} {seen['state_reason'] or ''}"
        self.facts.check(f"{what}: available", seen["device_state"] == "available", state)
        reserved = wait_for(lambda: self.reserved(device), lambda n: n == 0, seconds=10, pause=0.3)
        self.facts.check(f"{what}: offered", reserved == 0, f"total 1, reserved {reserved}")


def run(*command: object, **options: Any) -> str:
    """Run a command of the host and return its output; what it says otherwise goes into the report.

    :raises subprocess.CalledProcessError: it failed.
    """
    return subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def pci(address: str, file: str, text: str) -> None:
    """Write to a file of a PCI device in sysfs."""
    Path("/sys/bus/pci/devices", address, file).write_text(text, encoding="ascii")


def give_to(driver: str, address: str) -> None:
    """Have a PCI device leave its driver for another, as an operator does by hand."""
    pci(address, "driver_override", driver)
    if Path("/sys/bus/pci/devices", address, "driver").exists():
        pci(address, "driver/unbind", address)
    Path("/sys/bus/pci/drivers_probe").write_text(address, encoding="ascii")
    pci(address, "driver_override", "\n")
