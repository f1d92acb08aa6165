"""What an operator asks before anything can be erased."""

import subprocess

import yaml

from stories.clients import BIN
from stories.host import CONFIG, Host, pci


def tell(host: Host) -> None:
    """``autoclave plan`` names what is offered, what is not, and why."""
    facts = host.facts
    facts.say("autoclave plan")
    virtual_functions(host)
    command = [BIN / "autoclave", "plan", "--config-file", CONFIG, "--long", "-f", "yaml"]
    done = subprocess.run(command, capture_output=True, text=True)
    print(done.stderr + done.stdout)
    facts.demand("plan ends well", done.returncode == 0, f"exit code {done.returncode}")
    rows = {row["address"]: row for row in yaml.safe_load(done.stdout)}
    for serial, action in (
        ("LAB0001", "write_zeroes"),
        ("LAB0002", "write_zeroes"),
        ("LABTWO", "write_zeroes"),
        ("LABCRYPT", "sanitize_crypto"),
        ("LABBLOCK", "sanitize_block"),
    ):
        row = rows[host.drives[serial].address]
        facts.check(f"plan would erase {serial} by {action}", row["action"] == action, row["why"])
    estimate = rows[host.drives["LABCRYPT"].address]["estimate"]
    facts.check("plan says how long a sanitize takes", estimate == "4 s (the drive reports it)", estimate)
    for serial, words in (
        ("LABHOST", "/srv/host-disk"),
        ("LABSWAP", "used as swap"),
        ("LABLVM", "LVM volume lab-own"),
        ("LABMD", "RAID array md0"),
        ("LABPATHS", "also reached through"),
    ):
        row = rows[host.drives[serial].address]
        refused = " ".join(row["refused"])
        facts.check(f"plan refuses {serial}", words in refused, refused)
    card = host.drives["LABVF"]
    handles = rows[card.address]["handles"]
    ready = f"{card.virtual_function(1)} (vfio-pci, not managed)"
    facts.check("plan offers a virtual function that is with vfio-pci", handles[0] == ready, handles[0])
    withheld = "it is bound to no driver" in handles[1]
    facts.check("plan withholds one that has no driver", withheld, handles[1])
    physical = host.drives["LABPF"]
    refused = " ".join(rows[physical.address]["refused"])
    facts.check("plan refuses a drive whose virtual functions are enabled", "virtual function" in refused, refused)
    for address in (physical.virtual_function(1), physical.virtual_function(2)):
        refused = " ".join(rows[address]["refused"])
        facts.check(f"plan refuses the virtual function {address}", "virtual function" in refused, refused)


def virtual_functions(host: Host) -> None:
    """Enable the physical function's virtual functions."""
    address = host.drives["LABPF"].address
    pci(address, "sriov_drivers_autoprobe", "0")
    pci(address, "sriov_numvfs", "2")
