"""The sessions that the documentation shows work as they are printed."""

import re
from pathlib import Path

import pytest
from documented_cloud import documented_cloud
from sessions import DATA_DIR, PAGES, ROOT, URL, Session, served

from dbfixtures import SERVERS

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


def until(command: str, text: str) -> str:
    """What waits until the output of *command* has *text*."""
    return f"until {command} | grep -q {text!r}; do sleep 0.2; done"


def configuration(page: str) -> str:
    """The first one that a page shows."""
    found = re.search(r"\.\. code-block:: ini\n\n((?: {3}.*\n)+)", (PAGES / page).read_text())
    assert found is not None
    return found[1].replace("   ", "")


GPU = configuration("one-time-use.rst")
[CARDS] = ["\n".join(step.shown) for step in Session("simulator.rst").steps() if step.command == "cat cards.conf"]
SIM_1 = f"{DATA_DIR}/sim/sim-1"
FUNCTIONS = (
    "openstack resource provider inventory list -f value -c total"
    " $(autoclave device show sim-1/0000:82:00.0 -f value -c rp_uuid)"
)
ZEROED = "autoclave device show sim-1/0000:42:00.0 -f value -c device_state -c missing"

SESSIONS = (
    # A host can be taken out only when its agent is gone: see test_taken_out.py.
    Session("compute-api.rst", end="Decommissioning a host", before=(FAST_DRIVE,)),
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
    Session(
        "clean.rst",
        before=FAILED_ERASE,
        instead={
            "HOST/PCI-ADDRESS": "sim-1/0000:41:00.0",
            "nvme sanitize-log /dev/nvme0": f"{SIM_1}/bin/nvme sanitize-log {SIM_1}/dev/nvme1",
        },
        roots=("nvme sanitize-log",),
    ),
    Session(
        "simulator.rst",
        config=CARDS,
        files={"cards.conf": CARDS},
        patience={
            "autoclave sim pull": until(ZEROED, "True"),
            "autoclave sim put-back": until(ZEROED, "error"),
            "autoclave sim insert": until("autoclave device show sim-1/0000:42:00.0", "NEW-SERIAL"),
            "autoclave sim driver": until(FUNCTIONS, "2"),
        },
    ),
    Session(
        "replace.rst",
        patience={"autoclave sim insert": until("autoclave device show sim-1/0000:42:00.0", "NEW-SERIAL")},
    ),
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


@pytest.mark.parametrize("server", SERVERS)
def test_a_cloud_can_be_made_and_upgraded_by_the_commands_of_the_pages(server: str, tmp_path: Path) -> None:
    healthy = "until curl -sf http://controller:6666/healthcheck; do sleep 0.2; done"
    of_another_server = {"postgresql": "sudo mariadb", "mariadb": "sudo -u postgres"}[server]
    controllers = Session(
        "cloud.rst",
        end="The hosts",
        roots=("/opt/autoclave/bin/autoclave ", "systemctl"),
        left_out=(of_another_server,),
        patience={"systemctl": healthy},
    )
    hosts = Session(
        "cloud.rst",
        begin="The hosts",
        end="Nova",
        roots=("/opt/autoclave/bin/autoclave ", "systemctl"),
    )
    operator = Session(
        "cloud.rst",
        begin="Nova",
        left_out=("openstack flavor", "openstack server"),  # a running Nova's
        patience={"export AUTOCLAVE_TOKEN": until("autoclave device list", "available")},
    )
    upgrade = Session(
        "upgrade.rst",
        end="Rows of an older release",
        before=("export AUTOCLAVE_URL=http://controller:6666 AUTOCLAVE_TOKEN=$(openstack token issue -f value -c id)",),
        roots=("/opt/autoclave/bin/autoclave ",),
        # that nothing is cleaned ends in 1
        left_out=({"postgresql": "mariadb-dump", "mariadb": "pg_dump"}[server], "autoclave device list -f value"),
    )
    with documented_cloud(tmp_path, server) as cloud:
        cloud.follow(controllers)
        cloud.follow(hosts, machine="autoclave-agent")
        cloud.follow(operator)
        cloud.follow(upgrade)
