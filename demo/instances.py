"""Instances: on a trusted host by an image's trait, with a drive by a device profile, and with a card for one use."""

import json
from pathlib import Path
from typing import Any

from stage import Demo, wait_for

TRUSTED, OTHER = "sim-1", "sim-2"
CARD = "0000:91:00.0"
CLEANER = str(Path(__file__).parent.parent / "contrib" / "clean_burned_devices.py")

_CONFIGURATION = """\
[compute]
provider_config_location = {provider_config}

[pci]
device_spec = {{"vendor_id": "10de", "product_id": "20b5", "resource_class": "CUSTOM_A100", "one_time_use": true}}
"""

_PROVIDER_CONFIG = """\
meta:
  schema_version: "1.0"
providers:
  - identification:
      name: {host}
    traits:
      additional:
        - CUSTOM_TRUSTED_HOST
"""


def configuration(data_dir: Path) -> str:
    """What ``autoclave.conf`` says for this story; writes the file that it names."""
    folder = data_dir / "provider_config"
    folder.mkdir(mode=0o755)
    file = folder / "trusted.yaml"
    file.write_text(_PROVIDER_CONFIG.format(host=TRUSTED))
    file.chmod(0o644)
    return _CONFIGURATION.format(provider_config=folder)


def tell(demo: Demo) -> None:
    """The story."""
    with_what_they_need(demo)
    on_a_trusted_host(demo)
    with_a_drive(demo)
    with_a_card_for_one_use(demo)


def with_what_they_need(demo: Demo) -> None:
    """Flavors, and an image that must run on a trusted host."""
    demo.say("Flavors, and an image that must run on a trusted host")
    small = ("--vcpus", "1", "--ram", "256", "--disk", "1")
    demo.openstack("flavor", "create", "small", *small)
    demo.openstack("flavor", "create", "scratch", *small, "--property", "accel:device_profile=scratch")
    demo.openstack("flavor", "create", "a100", *small, "--property", "resources:CUSTOM_A100=1")
    image = Path(demo.data_dir) / "disk.raw"
    image.write_bytes(b"a guest's disk".ljust(1 << 20, b"\0"))
    file = ("--disk-format", "raw", "--container-format", "bare", "--file", str(image))
    demo.openstack("image", "create", "plain", *file)
    demo.openstack("image", "create", "trusted", *file, "--property", "trait:CUSTOM_TRUSTED_HOST=required")
    demo.sim("plug", OTHER, CARD, "10de:20b5")


def on_a_trusted_host(demo: Demo) -> None:
    """The image decides where its instances may run."""
    demo.say("Three instances of that image: all of them on the one trusted host")
    hosts = [create(demo, f"trusted-{n}", "small", "trusted")["OS-EXT-SRV-ATTR:host"] for n in range(3)]
    demo.check("each of them is there", hosts == [TRUSTED] * 3, ", ".join(hosts))
    for n in range(3):
        delete(demo, f"trusted-{n}")


def with_a_drive(demo: Demo) -> None:
    """A device profile in the flavor: the instance gets a drive, and the drive is erased after it."""
    demo.say("An instance with a drive, by the flavor's device profile")
    server = create(demo, "with-drive", "scratch", "plain")
    (uuid,) = [
        each["uuid"] for each in demo.openstack("accelerator", "arq", "list") if each["instance_uuid"] == server["id"]
    ]
    request = demo.openstack("accelerator", "arq", "show", uuid)
    demo.check("its accelerator request is bound", request["state"] == "Bound", request["state"])
    devices = demo.get("/autoclave/v1/devices")["devices"]
    device = next(each for each in devices if each["rp_uuid"] == request["device_rp_uuid"])
    demo.check("the drive is allocated", device["device_state"] == "allocated", device["device_state"])
    delete(demo, "with-drive")
    seen = demo.watch(device["uuid"])
    demo.check("the drive was erased", seen["device_state"] == "available", seen["state_reason"])


def with_a_card_for_one_use(demo: Demo) -> None:
    """A one-time-use card: burned by its first instance, out of reach until it is cleaned and released."""
    demo.say("A card for one use")
    provider = wait_for(lambda: card(demo), lambda found: found is not None, 30)
    demo.check("Placement offers it", provider is not None and demo.reserved(provider) == 0, provider)
    assert provider is not None
    server = create(demo, "first", "a100", "plain")
    demo.check("the instance has it", server["status"] == "ACTIVE", server["OS-EXT-SRV-ATTR:host"])
    demo.check("it is burned while the instance runs", demo.reserved(provider) == 1, "reserved = 1")
    delete(demo, "first")
    burned = demo.autoclave("burned", "list")
    demo.check("it is burned when the instance is gone", len(burned) == 1 and demo.reserved(provider) == 1, burned)

    demo.say("Nobody gets it, and the fault says so")
    demo.openstack("server", "create", "--flavor", "a100", "--image", "plain", "--nic", "none", "second")
    server = ended(demo, "second")
    demo.check("the second instance finds no host", server["status"] == "ERROR", server["fault"])
    delete(demo, "second")

    demo.say("The operator's own program cleans and releases it")
    options = ("--host", OTHER, "--once", "--lock-directory", str(demo.data_dir))
    done = demo.run(CLEANER, *options, "--", "/bin/true")
    demo.check("Placement offers it again", wait_for(lambda: demo.reserved(provider), lambda r: r == 0, 30) == 0, done)
    server = create(demo, "third", "a100", "plain")
    demo.check("the next instance gets it", server["status"] == "ACTIVE", server["OS-EXT-SRV-ATTR:host"])
    delete(demo, "third")


def card(demo: Demo) -> str | None:
    """The card's resource provider."""
    found = demo.openstack("resource", "provider", "list", "--name", f"{OTHER}_{CARD.upper()}")
    return str(found[0]["uuid"]) if found else None


def create(demo: Demo, name: str, flavor: str, image: str) -> dict[str, Any]:
    """A server that runs.

    :raises SystemExit: it does not.
    """
    demo.openstack("server", "create", "--flavor", flavor, "--image", image, "--nic", "none", name)
    server = ended(demo, name)
    demo.check(f"{name} runs", server["status"] == "ACTIVE", server.get("fault") or server["OS-EXT-SRV-ATTR:host"])
    return server


def ended(demo: Demo, name: str) -> dict[str, Any]:
    """The server, when its building has ended."""
    shown: dict[str, Any] = wait_for(
        lambda: demo.openstack("server", "show", name), lambda seen: seen["status"] != "BUILD", 60
    )
    return shown


def delete(demo: Demo, name: str) -> None:
    """The server is gone, with everything that it had."""
    demo.openstack("server", "delete", "--wait", name, answers=False)
    left = [each["Name"] for each in demo.openstack("server", "list")]
    demo.check(f"{name} is gone", name not in left, json.dumps(left))
