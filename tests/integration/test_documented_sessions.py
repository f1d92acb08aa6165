"""The sessions that the documentation shows work as they are printed."""

import re
from pathlib import Path

import pytest
from sessions import PAGES, ROOT, URL, Session, served

pytestmark = pytest.mark.integration

EXAMPLES = PAGES / "examples"
FAST_DRIVE = (
    "openstack accelerator device profile create fast-drive"
    " --group resources:CUSTOM_NVME_144D_A808=1,trait:HW_NVME_CES=required"
)
FAILED_ERASE = (
    FAST_DRIVE,
    "autoclave sim fault sim-1 0000:41:00.0 sanitize-fails",
    "ARQ=$(openstack accelerator arq create fast-drive -f value -c uuid)",
    "autoclave sim bind sim-1 0000:41:00.0 $ARQ",
    "openstack accelerator arq delete $ARQ",
    "while ! autoclave device show sim-1/0000:41:00.0 -f value -c device_state | grep -q error; do sleep 0.2; done",
    "autoclave sim clear sim-1 0000:41:00.0",
)
FLAVOR_AND_IMAGE = (
    "openstack flavor create gpu-large --vcpus 1 --ram 512 --disk 1 --property pci_passthrough:alias=gpu:1",
    "head -c 1M /dev/zero > debian-12.raw",
    "openstack image create debian-12 --disk-format raw --file debian-12.raw",
)
VM1 = "openstack server create vm1 --flavor gpu-large --image debian-12 --nic none --host sim-1 --wait"
TRUSTED_HOST = """\
meta: {schema_version: "1.0"}
providers:
  - identification: {uuid: $COMPUTE_NODE}
    traits: {additional: [CUSTOM_TRUSTED_HOST]}
"""


def configuration(page: str) -> str:
    """The first one that a page shows."""
    found = re.search(r"\.\. code-block:: ini\n\n((?: {3}.*\n)+)", (PAGES / page).read_text())
    assert found is not None
    return found[1].replace("   ", "")


GPU = configuration("one-time-use.rst")

SESSIONS = (
    Session("compute-api.rst", before=(FAST_DRIVE,)),
    Session(
        "scheduling.rst",
        config=f"{GPU}\n[compute]\nprovider_config_location = HERE/provider_config\n",
        files={"provider_config/trusted.yaml": TRUSTED_HOST},
        before=FLAVOR_AND_IMAGE,
    ),
    Session("guests.rst", config=GPU, before=(*FLAVOR_AND_IMAGE, VM1)),
    Session(
        "one-time-use.rst",
        end="Rehearse it",
        config=GPU,
        before=(*FLAVOR_AND_IMAGE, VM1, "openstack server delete vm1 --wait"),
        instead={"host-1": "sim-1"},
    ),
    Session(
        "pci-in-placement.rst",
        instead={"/etc/autoclave/autoclave.conf": str(EXAMPLES / "pci-in-placement.conf")},
    ),
    Session(
        "provider-config.rst",
        files={
            name: (EXAMPLES / "provider-config.yaml").read_text() for name in ("new.yaml", "provider_config/1.yaml")
        },
        instead={"/etc/autoclave/provider_config/": "provider_config/"},
    ),
    Session("recover.rst", before=FAILED_ERASE, instead={"HOST/PCI-ADDRESS": "sim-1/0000:41:00.0"}),
    Session("audit.rst", instead={"/var/lib/autoclave": "/tmp/autoclave", "host-1/": "sim-1/"}),
)


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.page)
def test_the_sessions_of_a_page_work_as_they_are_printed(session: Session, tmp_path: Path) -> None:
    with served(tmp_path, session) as service:
        service.run()


def test_the_story_of_a_drive_can_be_told_by_the_commands_of_the_page(tmp_path: Path) -> None:
    with served(tmp_path, Session("use.rst")) as service:
        told = service.run()
    assert len(told) > 20
    lines = [line for step in told for line in step.output.splitlines()]
    assert lines.index("there") < lines.index("gone")
    assert any(line.startswith("| device_state") and "error" in line for line in lines)


def test_a_device_of_one_time_use_can_be_rehearsed_by_the_commands_of_the_page(tmp_path: Path) -> None:
    session = Session(
        "one-time-use.rst",
        begin="Rehearse it",
        config=GPU,
        hosts=1,
        instead={"contrib/": f"AUTOCLAVE_URL={URL} {ROOT}/contrib/"},
    )
    with served(tmp_path, session) as service:
        told = service.run()
    assert len(told) > 15
    lines = [line.strip() for step in told for line in step.output.splitlines()]
    [burned] = [at for at, line in enumerate(lines) if line.startswith("| sim-1") and "0000:81:00.0" in line]
    refused = next(at for at, line in enumerate(lines) if "No valid host was found" in line)
    cleaned = next(at for at, line in enumerate(lines) if line.startswith("cleaned 0000:81:00.0 "))
    assert burned < refused < cleaned < lines.index("ACTIVE")
    assert lines[-1] != "0000:81:00.0"  # released by hand, and taken note of
