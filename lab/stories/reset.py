"""A function of the emulated machine is reset by the kernel, and a program of the operator runs for it."""

import json
import uuid
from dataclasses import dataclass
from pathlib import Path

from autoclave.conf import new_config
from autoclave.drivers.pci import PCIDriver
from autoclave.exceptions import HardwareError
from autoclave.hardware.host import HostPaths
from stories.host import Host, give_to

IDS = "1af4:1044"
BUS = Path("/sys/bus/pci/devices")
PROGRAM = Path("/etc/autoclave/clear.d/clear-rng")
_SCRIPT = """#!/bin/sh
echo progress 50 "$AUTOCLAVE_PCI_ADDRESS"
"""


@dataclass
class Row:
    """A device that a guest has given back."""

    cleanup_action: str
    pci_address: str
    drive_model: str | None = IDS
    serial: str | None = None
    layout: str | None = None
    uuid: str = str(uuid.uuid4())


def tell(host: Host) -> None:
    """Reset while it is bound to VFIO, cleared by the program, refused without a reset file."""
    facts = host.facts
    facts.say("reset and command")
    [address] = [each.name for each in BUS.iterdir() if _ids(each) == IDS]
    ways = (BUS / address / "reset_method").read_text().split()
    facts.check("the kernel shows how it resets the function", bool(ways), ways)
    give_to("vfio-pci", address)
    evidence = _driver({"clear_action": "reset"}).cleanup(Row("reset", address))
    facts.check("it is reset", evidence["reset_method"] == ways, json.dumps(evidence))
    facts.check("a reset is no proof", evidence["verified"].startswith("nothing"), evidence["verified"])

    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    PROGRAM.write_text(_SCRIPT)
    PROGRAM.chmod(0o755)
    driver = _driver({"clear_action": "command", "clear_command": [str(PROGRAM)]})
    evidence = driver.cleanup(Row("command", address))
    facts.check("the program has cleared it", evidence["exit_code"] == 0, json.dumps(evidence))
    PROGRAM.chmod(0o757)
    try:
        driver.cleanup(Row("command", address))
        refused = "it ran"
    except HardwareError as error:
        refused = str(error)
    facts.check("a program that others can change does not run", "other than root can change" in refused, refused)


def _ids(function: Path) -> str:
    return ":".join((function / name).read_text().strip().removeprefix("0x") for name in ("vendor", "device"))


def _driver(keys: dict[str, object]) -> PCIDriver:
    vendor, product = IDS.split(":")
    entry = {"vendor_id": vendor, "product_id": product, "reclaim": "erase"} | keys
    return PCIDriver(new_config([], {("pci", "passthrough_whitelist"): [json.dumps(entry)]}), HostPaths())
