"""The sample cleaner, run as operators run it, against a service with its embedded Placement."""

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

import pytest
import requests
from processes import wait_until

from autoclave.conf import new_config
from autoclave.db.engine import Database
from autoclave.lifecycle.reserve import Settled
from autoclave.objects.instance_action import instance_action
from autoclave.placement.client import PlacementClient
from autoclave.placement.records import Inventory
from autoclave.placement.transport import http_adapter
from autoclave.rpc.notifications import MessagingNotifications, Notification
from autoclave.services.up import AllInOne
from autoclave.simulator.drive_spec import DriveSpec
from autoclave.simulator.host import SimulatedHost
from burnedrows import OneTimeUse
from freeport import free_port

pytestmark = pytest.mark.integration

CLEANER = Path(__file__).parents[2] / "contrib" / "clean_burned_devices.py"
GPU = "0000:81:00.0"
BURNED, RELEASED = Inventory(1, 1, 1, 1, 1, 1.0), Inventory(1, 0, 1, 1, 1, 1.0)


class Service:
    """A running service."""

    def __init__(self, directory: Path) -> None:
        self._up = AllInOne([], directory, ("127.0.0.1", free_port()), 1)
        self._up.start()
        self.url = self._up.url
        self.clouds = directory / "clouds.yaml"
        self.db = Database(f"sqlite:///{directory}/autoclave.db")
        self.placement = PlacementClient(
            http_adapter(new_config((), {("placement", "endpoint"): f"{self.url}/placement"}))
        )

    def stop(self) -> None:
        self.db.dispose()
        self._up.stop()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    made = Service(tmp_path_factory.mktemp("service"))
    yield made
    made.stop()


class Cleaner:
    """The script on one host."""

    def __init__(self, service: Service, host: str, directory: Path) -> None:
        self.host = host
        self.url: str | None = service.url
        self.log = directory / "cleaner.log"
        self.environment = {**os.environ, "OS_CLIENT_CONFIG_FILE": str(service.clouds), "OS_CLOUD": "autoclave"}
        self._directory = directory

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        where = ["--autoclave", self.url] if self.url else []
        common = ["--host", self.host, *where, "--lock-directory", str(self._directory)]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, str(CLEANER), *common, *arguments], stdout=log, stderr=log, env=self.environment
            )

    def run(self, *arguments: str) -> int:
        """To the end; the exit code."""
        return self.start(*arguments).wait(60)

    @property
    def said(self) -> str:
        return self.log.read_text()


class Tool:
    """A command of the operator that notes what it was called with, and then does *then*."""

    def __init__(self, directory: Path, then: str = "", name: str = "wipe") -> None:
        self._calls, self._go = directory / f"{name}.calls", directory / f"{name}.go"
        self.path = directory / name
        self.path.write_text(f'#!/bin/sh\nprintf "%s|" "$@" >>{self._calls}\necho >>{self._calls}\n{then}\n')
        self.path.chmod(0o755)

    @classmethod
    def waiting(cls, directory: Path) -> "Tool":
        """One that goes on until it is let go."""
        return cls(directory, f"while [ ! -e {directory}/wipe.go ]; do sleep 0.05; done")

    @property
    def calls(self) -> list[list[str]]:
        if not self._calls.exists():
            return []
        return [line.split("|")[:-1] for line in self._calls.read_text().splitlines()]

    def begun(self) -> None:
        wait_until("the command runs", lambda: self.calls)

    def let_go(self) -> None:
        self._go.touch()


@pytest.fixture
def devices(service: Service) -> OneTimeUse:
    """Those of a host of its own, whose name divides the providers' names in places where it should not."""
    return OneTimeUse(service.db, service.placement, f"rack_7_{uuid.uuid4().hex[:8]}")


@pytest.fixture
def cleaner(service: Service, devices: OneTimeUse, tmp_path: Path) -> Cleaner:
    return Cleaner(service, devices.host, tmp_path)


# Which Autoclave, and which host


def test_an_unknown_host_is_an_error(cleaner: Cleaner, tmp_path: Path) -> None:
    """A mistyped --host must not read as "nothing is burned"."""
    cleaner.host = "no-such-host"
    assert cleaner.run("--once", "--", str(Tool(tmp_path).path)) == 1
    assert "no provider named no-such-host" in cleaner.said
    assert "No device" not in cleaner.said


def test_an_unnamed_service_is_an_error(devices: OneTimeUse, cleaner: Cleaner, tmp_path: Path) -> None:
    """Something that happens to listen on Autoclave's usual port is not asked."""
    devices.burned()
    cleaner.url, tool = None, Tool(tmp_path)
    for name in ("AUTOCLAVE_URL", "AUTOCLAVE_DATA_DIR"):
        cleaner.environment.pop(name, None)
    assert cleaner.run("--once", "--", str(tool.path)) == 1
    assert "AUTOCLAVE_DATA_DIR" in cleaner.said
    cleaner.environment["AUTOCLAVE_DATA_DIR"] = str(tmp_path / "nowhere")
    assert cleaner.run("--once", "--", str(tool.path)) == 1
    assert "nowhere/clouds.yaml" in cleaner.said
    assert tool.calls == []


def test_the_data_directory_names_the_service(
    service: Service, devices: OneTimeUse, cleaner: Cleaner, tmp_path: Path
) -> None:
    """AUTOCLAVE_DATA_DIR is enough, as for every command of `autoclave`."""
    rp_uuid, tool = devices.burned(), Tool(tmp_path)
    cleaner.url = None
    cleaner.environment["AUTOCLAVE_DATA_DIR"] = str(service.clouds.parent)
    assert cleaner.run("--once", "--", str(tool.path)) == 0
    assert tool.calls == [[GPU, rp_uuid]]


# What is released


def test_a_cleaned_device_is_released_with_its_whole_record_and_autoclave_takes_note(
    devices: OneTimeUse, cleaner: Cleaner, tmp_path: Path
) -> None:
    rp_uuid, tool = devices.burned(), Tool(tmp_path)
    assert devices.inventory(rp_uuid) == BURNED
    assert cleaner.run("--once", "--", str(tool.path), "--full", "$(reboot) ;") == 0
    assert tool.calls == [["--full", "$(reboot) ;", GPU, rp_uuid]]
    assert devices.inventory(rp_uuid) == RELEASED
    # The conductor of the service reconciles as well, and may be first.
    assert devices.settle(rp_uuid) in (Settled.LOWERED, Settled.UNCHANGED)
    assert not devices.row(rp_uuid).burned
    assert devices.offered(rp_uuid)
    assert cleaner.run("--once", "--", str(tool.path)) == 0
    assert len(tool.calls) == 1


def test_what_was_released_and_is_not_noted_yet_is_not_cleaned_again(
    devices: OneTimeUse, cleaner: Cleaner, tmp_path: Path
) -> None:
    devices.burned()
    tool = Tool(tmp_path)
    for _ in range(2):
        assert cleaner.run("--once", "--", str(tool.path)) == 0
    assert len(tool.calls) == 1
    assert "is not reserved any more" in cleaner.said


def test_other_hosts_and_other_classes_are_left_alone(
    service: Service, devices: OneTimeUse, cleaner: Cleaner, tmp_path: Path
) -> None:
    tool = Tool(tmp_path)
    theirs = OneTimeUse(service.db, service.placement, f"{devices.host}_b").burned()
    other = devices.burned("0000:82:00.0", "CUSTOM_FPGA")
    gpu = devices.burned()
    assert cleaner.run("--once", "--resource-class", "CUSTOM_PCI_10DE_25B6", "--", str(tool.path)) == 0
    assert [call[-1] for call in tool.calls] == [gpu]
    assert [devices.inventory(each) for each in (theirs, other, gpu)] == [BURNED, BURNED, RELEASED]


# What is not


def test_an_operators_hold_is_neither_cleaned_nor_released(
    devices: OneTimeUse, cleaner: Cleaner, tmp_path: Path
) -> None:
    rp_uuid, tool = devices.add(), Tool(tmp_path)
    devices.hold(rp_uuid)
    assert cleaner.run("--once", "--", str(tool.path)) == 0
    assert (tool.calls, devices.inventory(rp_uuid)) == ([], BURNED)


def test_a_device_that_is_held_while_it_is_cleaned_stays_held(
    devices: OneTimeUse, cleaner: Cleaner, tmp_path: Path
) -> None:
    rp_uuid, tool = devices.burned(), Tool.waiting(tmp_path)
    running = cleaner.start("--once", "--", str(tool.path))
    tool.begun()
    devices.hold(rp_uuid)
    tool.let_go()
    assert running.wait(60) == 1
    assert devices.inventory(rp_uuid) == BURNED
    assert "stays burned: it was taken, held or changed while it was cleaned" in cleaner.said


def test_a_device_that_others_used_while_it_was_cleaned_is_not_released(
    devices: OneTimeUse, cleaner: Cleaner, tmp_path: Path
) -> None:
    rp_uuid, tool = devices.burned(), Tool.waiting(tmp_path)
    running = cleaner.start("--once", "--", str(tool.path))
    tool.begun()
    answer = requests.post(f"{cleaner.url}/autoclave/v1/burned/{rp_uuid}/release", timeout=60)
    assert answer.status_code == 200
    devices.use_up(rp_uuid)
    tool.let_go()
    assert running.wait(60) == 1
    assert devices.inventory(rp_uuid) == BURNED
    assert devices.row(rp_uuid).burned


def test_a_device_in_use_is_left_alone(devices: OneTimeUse, cleaner: Cleaner, tmp_path: Path) -> None:
    rp_uuid, tool = devices.add(), Tool(tmp_path)
    devices.use(rp_uuid)
    assert cleaner.run("--once", "--", str(tool.path)) == 0
    assert (tool.calls, devices.inventory(rp_uuid)) == ([], BURNED)
    assert f"{GPU} is in use; it is left alone" in cleaner.said


def test_a_device_that_its_agent_has_not_seen_idle_waits_for_that(
    devices: OneTimeUse, cleaner: Cleaner, tmp_path: Path
) -> None:
    rp_uuid, tool = devices.add(), Tool(tmp_path)
    devices.delete(devices.use(rp_uuid))
    assert cleaner.run("--once", "--", str(tool.path)) == 0
    assert (tool.calls, devices.inventory(rp_uuid)) == ([], BURNED)
    assert devices.settle(rp_uuid) is Settled.CONFIRMED
    assert cleaner.run("--once", "--", str(tool.path)) == 0
    assert devices.inventory(rp_uuid) == RELEASED


def test_a_command_that_fails_leaves_its_device_burned_and_the_next_one_is_cleaned(
    devices: OneTimeUse, cleaner: Cleaner, tmp_path: Path
) -> None:
    bad, good = devices.burned(), devices.burned("0000:82:00.0")
    tool = Tool(tmp_path, f"[ $1 != {GPU} ] || exit 7")
    assert cleaner.run("--once", "--", str(tool.path)) == 1
    assert (devices.inventory(bad), devices.inventory(good)) == (BURNED, RELEASED)
    assert f"{GPU} (provider {bad}) stays burned: {tool.path} ended with 7" in cleaner.said


def test_a_command_that_cannot_be_started_leaves_its_device_burned(devices: OneTimeUse, cleaner: Cleaner) -> None:
    rp_uuid = devices.burned()
    assert cleaner.run("--once", "--", "/no/such/command") == 1
    assert devices.inventory(rp_uuid) == BURNED
    assert "No such file or directory: '/no/such/command'" in cleaner.said


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def ends(pid: int) -> None:
    """What was killed is gone when the kernel has come to it."""
    wait_until("the child ends", lambda: not is_running(pid))


def child_of(tmp_path: Path) -> int:
    return int(wait_until("the child runs", lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text()))


def test_a_command_that_takes_too_long_is_ended_with_all_that_it_has_started(
    devices: OneTimeUse, cleaner: Cleaner, tmp_path: Path
) -> None:
    rp_uuid, tool = devices.burned(), Tool(tmp_path, f"sleep 600 & echo $! >{tmp_path}/child; wait")
    assert cleaner.run("--once", "--timeout", "5", "--", str(tool.path)) == 1
    ends(child_of(tmp_path))
    assert devices.inventory(rp_uuid) == BURNED
    assert "took more than 5 s" in cleaner.said


def test_a_command_that_leaves_somebody_at_the_device_has_not_cleaned_it(
    devices: OneTimeUse, cleaner: Cleaner, tmp_path: Path
) -> None:
    rp_uuid, tool = devices.burned(), Tool(tmp_path, f"sleep 600 & echo $! >{tmp_path}/child")
    assert cleaner.run("--once", "--", str(tool.path)) == 1
    ends(child_of(tmp_path))
    assert devices.inventory(rp_uuid) == BURNED


def test_a_dry_run_runs_nothing_and_writes_nothing(devices: OneTimeUse, cleaner: Cleaner, tmp_path: Path) -> None:
    rp_uuid, tool = devices.burned(), Tool(tmp_path)
    before = devices.placement.get_provider(rp_uuid)
    assert cleaner.run("--once", "--dry-run", "--", str(tool.path)) == 0
    assert (tool.calls, devices.placement.get_provider(rp_uuid)) == ([], before)
    assert devices.inventory(rp_uuid) == BURNED
    assert f"{GPU} would be cleaned and released, by: {tool.path} {GPU} {rp_uuid}" in cleaner.said
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".lock")] == []


# Who else is at it, and how it ends


def test_no_two_cleaners_are_at_one_device(devices: OneTimeUse, cleaner: Cleaner, tmp_path: Path) -> None:
    rp_uuid, tool = devices.burned(), Tool.waiting(tmp_path)
    running = cleaner.start("--once", "--", str(tool.path))
    tool.begun()
    assert cleaner.run("--once", "--", str(tool.path)) == 0
    assert "is being cleaned by another process" in cleaner.said
    tool.let_go()
    assert running.wait(60) == 0
    assert (len(tool.calls), devices.inventory(rp_uuid)) == (1, RELEASED)


def test_a_command_that_outlives_a_killed_cleaner_keeps_its_device(
    devices: OneTimeUse, cleaner: Cleaner, tmp_path: Path
) -> None:
    rp_uuid, tool = devices.burned(), Tool.waiting(tmp_path)
    running = cleaner.start("--once", "--", str(tool.path))
    tool.begun()
    running.kill()
    running.wait(60)
    assert cleaner.run("--once", "--", str(tool.path)) == 0
    assert (len(tool.calls), devices.inventory(rp_uuid)) == (1, BURNED)
    tool.let_go()

    def cleaned() -> bool:
        return cleaner.run("--once", "--", str(tool.path)) == 0 and devices.inventory(rp_uuid) == RELEASED

    wait_until("the next cleaner gets the device", cleaned, lambda: cleaner.said)
    assert len(tool.calls) == 2


@pytest.mark.parametrize(
    ("mode", "number", "code"),
    [
        (["--once"], signal.SIGTERM, 128 + signal.SIGTERM),
        (["--once"], signal.SIGINT, 128 + signal.SIGINT),
        (["--periodic", "60"], signal.SIGTERM, 0),
    ],
    ids=["once, SIGTERM", "once, SIGINT", "service"],
)
def test_a_signal_ends_the_command_too_and_its_device_stays_burned(
    devices: OneTimeUse, cleaner: Cleaner, tmp_path: Path, mode: list[str], number: int, code: int
) -> None:
    rp_uuid, tool = devices.burned(), Tool(tmp_path, f"sleep 600 & echo $! >{tmp_path}/child; wait")
    running = cleaner.start(*mode, "--", str(tool.path))
    child = child_of(tmp_path)
    running.send_signal(number)
    assert running.wait(60) == code
    ends(child)
    assert devices.inventory(rp_uuid) == BURNED


def test_a_service_looks_again_and_survives_what_fails(devices: OneTimeUse, cleaner: Cleaner, tmp_path: Path) -> None:
    tool = Tool(tmp_path, f"[ -e {tmp_path}/mended ]")
    running = cleaner.start("--periodic", "0.5", "--", str(tool.path))
    rp_uuid = devices.burned()
    wait_until("a second attempt", lambda: len(tool.calls) > 1)
    assert devices.inventory(rp_uuid) == BURNED
    (tmp_path / "mended").touch()
    wait_until("released", lambda: devices.inventory(rp_uuid) == RELEASED, lambda: cleaner.said)
    running.terminate()
    assert running.wait(60) == 0


@pytest.mark.parametrize(
    ("change", "arguments", "said"),
    [
        ({"OS_CLOUD": "nowhere"}, [], "Cannot start: Cloud nowhere was not found."),
        ({}, ["--autoclave", "http://127.0.0.1:1"], "is not known: Unable to establish connection"),
        ({}, ["--broker", "smoke://signal"], "Cannot start: --broker: "),
        ({}, ["--without-autoclave", "--host", "nobody"], "Placement has no provider named nobody; name the host"),
    ],
    ids=["no cloud", "no Autoclave", "no broker", "no host"],
)
def test_who_cannot_ask_what_is_burned_touches_nothing_and_says_so(
    devices: OneTimeUse, cleaner: Cleaner, tmp_path: Path, change: Mapping[str, str], arguments: list[str], said: str
) -> None:
    rp_uuid, tool = devices.burned(), Tool(tmp_path)
    cleaner.environment.update(change)
    assert cleaner.run("--once", *arguments, "--", str(tool.path)) == 1
    assert said in cleaner.said
    assert "Traceback" not in cleaner.said
    assert (tool.calls, devices.inventory(rp_uuid)) == ([], BURNED)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--once"], "name a command after --, or --nvme"),
        (["--", "wipe"], "one of the arguments --once --periodic is required"),
        (["--periodic", "0", "--", "wipe"], "0 is no number of seconds above 0"),
        (["--periodic", "soon", "--", "wipe"], "invalid seconds value"),
        (["--once", "--periodic", "1", "--", "wipe"], "not allowed with argument"),
    ],
    ids=["no command", "no mode", "zero", "no number", "both"],
)
def test_arguments_that_say_nothing_are_refused(cleaner: Cleaner, arguments: list[str], said: str) -> None:
    assert cleaner.run(*arguments) == 2
    assert said in cleaner.said


# Without Autoclave


def test_without_autoclave_it_says_that_holds_look_the_same_and_are_released_too(
    devices: OneTimeUse, cleaner: Cleaner, tmp_path: Path
) -> None:
    burned, held, clean = devices.burned(), devices.add("0000:82:00.0"), devices.add("0000:83:00.0")
    devices.hold(held)
    in_use = devices.add("0000:84:00.0")
    devices.use(in_use)
    tool = Tool(tmp_path)
    asked = ["--once", "--without-autoclave", "--autoclave", "http://127.0.0.1:1", "--", str(tool.path)]
    assert cleaner.run(*asked) == 0
    assert "burned and held look the same" in cleaner.said
    assert {call[1]: call[0] for call in tool.calls} == {burned: GPU, held: "0000:82:00.0"}
    assert [devices.inventory(each) for each in (burned, held, clean, in_use)] == [RELEASED, RELEASED, RELEASED, BURNED]


def test_without_autoclave_a_provider_that_is_no_device_is_left_alone(
    devices: OneTimeUse, cleaner: Cleaner, tmp_path: Path
) -> None:
    devices.add()
    root = devices.placement.find_provider(devices.host)
    assert root is not None
    odd = devices.placement.create_provider(str(uuid.uuid4()), f"{devices.host}_left", root.uuid)
    generation = devices.placement.put_traits(odd.uuid, odd.generation, ["HW_PCI_ONE_TIME_USE"])
    devices.placement.put_inventories(odd.uuid, generation, {"CUSTOM_PCI_10DE_25B6": BURNED})
    tool = Tool(tmp_path)
    assert cleaner.run("--once", "--without-autoclave", "--", str(tool.path)) == 0
    assert tool.calls == []
    assert re.search(rf"{devices.host}_left .* is not one device of this host; it is left alone", cleaner.said)


# Events


def deleted(host: str) -> Notification:
    payload = instance_action(
        uuid=str(uuid.uuid4()),
        display_name="vm",
        project_id="p",
        user_id="u",
        host=host,
        state="deleted",
        task_state=None,
        flavor={},
        image_uuid="",
        created_at=datetime(2026, 11, 28),
        launched_at=None,
        pci_functions=[],
    )
    return Notification(f"autoclave-agent:{host}", "instance.delete.end", payload)


def test_an_event_of_this_host_wakes_it(
    devices: OneTimeUse, cleaner: Cleaner, tmp_path: Path, rabbitmq_vhost_url: str
) -> None:
    topic, tool = f"autoclave-test-{uuid.uuid4().hex[:12]}", Tool(tmp_path)
    devices.placement.create_provider(str(uuid.uuid4()), devices.host)
    cleaner.environment["CLEANER_TRANSPORT_URL"] = rabbitmq_vhost_url
    running = cleaner.start("--periodic", "3600", "--topic", topic, "--debug", "--", str(tool.path))
    conf = new_config(
        (), {(None, "transport_url"): rabbitmq_vhost_url, ("notifications", "versioned_notifications_topics"): [topic]}
    )
    told = MessagingNotifications(conf)
    wait_until("the first look", lambda: "/autoclave/v1/burned" in cleaner.said)
    rp_uuid = devices.burned()
    told.emit(deleted("another-host"))
    time.sleep(1)
    assert devices.inventory(rp_uuid) == BURNED
    told.emit(deleted(devices.host))
    wait_until("released", lambda: devices.inventory(rp_uuid) == RELEASED, lambda: cleaner.said)
    told.close()
    running.terminate()
    assert running.wait(60) == 0


def test_a_broker_that_is_away_neither_keeps_it_from_polling_nor_from_ending(
    devices: OneTimeUse, cleaner: Cleaner, tmp_path: Path
) -> None:
    tool = Tool(tmp_path)
    cleaner.environment["CLEANER_TRANSPORT_URL"] = "rabbit://guest:guest@127.0.0.1:1/"
    running = cleaner.start("--periodic", "0.5", "--", str(tool.path))
    rp_uuid = devices.burned()
    wait_until("released", lambda: devices.inventory(rp_uuid) == RELEASED, lambda: cleaner.said)
    running.terminate()
    assert running.wait(60) == 0


# Drives


def test_a_drive_is_erased_and_released(devices: OneTimeUse, cleaner: Cleaner, tmp_path: Path) -> None:
    address = "0000:41:00.0"
    host = SimulatedHost.create(tmp_path / "host", "h", [DriveSpec(address, "S1", block=True, sanitize_seconds=0.5)])
    host.fill(address, b"secret")
    rp_uuid = devices.burned(address, "CUSTOM_NVME")
    cleaner.environment["PATH"] = f"{host.root}/bin:{cleaner.environment['PATH']}"
    of_the_host = ["--sysfs", f"{host.root}/sys", "--dev", f"{host.root}/dev", "--poll", "0.1"]
    assert cleaner.run("--once", "--nvme", "--", *of_the_host) == 0, cleaner.said
    assert not host.find(address, b"secret")
    assert devices.inventory(rp_uuid) == RELEASED
