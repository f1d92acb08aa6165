"""The sample cleaner when Placement or Autoclave fail at one of its requests: the device stays reserved."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_world import HOST, World
from cheroot import wsgi

from autoclave.lifecycle.reserve import Settled
from autoclave.placement.embedded import EmbeddedPlacement
from autoclave.testing.placement import faults
from burnedrows import OneTimeUse

pytestmark = pytest.mark.matrix

CLEANER = Path(__file__).parents[3] / "contrib" / "clean_burned_devices.py"


class Cleaner:
    """The script, for a Placement that can be made to fail; its command always succeeds."""

    def __init__(self, url: str, placement: str, directory: Path) -> None:
        self._calls = directory / "calls"
        clouds = directory / "clouds.yaml"
        clouds.write_text(
            "clouds: {it: {auth_type: admin_token, auth: {endpoint: 'http://localhost', token: admin}, "
            f"placement_endpoint_override: '{placement}'}}}}\n"
        )
        self._environment = {**os.environ, "OS_CLIENT_CONFIG_FILE": str(clouds), "OS_CLOUD": "it"}
        self._argv = [sys.executable, str(CLEANER), "--once", "--host", HOST, "--autoclave", url]
        self._argv += ["--lock-directory", str(directory), "--", "/bin/sh", "-c", f"echo >>{self._calls}"]

    def run(self) -> tuple[int, str]:
        """Exit code, and what it says."""
        ended = subprocess.run(self._argv, env=self._environment, capture_output=True, text=True, timeout=60)
        return ended.returncode, ended.stderr

    @property
    def cleaned(self) -> int:
        """How often the command ran."""
        return len(self._calls.read_text().splitlines()) if self._calls.exists() else 0


@pytest.fixture
def world(tmp_path: Path, real_placement: EmbeddedPlacement) -> Iterator[World]:
    """With a real Placement: the double speaks one microversion only, which is not the script's."""
    made = World(tmp_path, placement=real_placement.app)
    yield made
    made.close()


@pytest.fixture
def devices(world: World) -> OneTimeUse:
    return OneTimeUse(world.db, world.ports.placement, HOST)


@pytest.fixture
def cleaner(world: World, url: str, tmp_path: Path) -> Iterator[Cleaner]:
    server = wsgi.Server(("127.0.0.1", 0), world.placement, numthreads=1)
    server.prepare()
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield Cleaner(url, f"http://127.0.0.1:{server.bind_addr[1]}", tmp_path)
    server.stop()
    thread.join()


def test_a_host_on_which_nothing_is_burned_is_told(world: World, devices: OneTimeUse, cleaner: Cleaner) -> None:
    code, said = cleaner.run()
    assert code == 0
    assert f"No device on {HOST} is burned" in said
    devices.burned()
    code, said = cleaner.run()
    assert (code, cleaner.cleaned) == (0, 1)
    assert "No device" not in said


@pytest.mark.parametrize("path", ["/inventories$", "/allocations$"])
@pytest.mark.parametrize(
    "effect",
    [faults.answer(503), faults.answer_raw(200, b"<html>"), faults.answer_raw(200, b"{}")],
    ids=["503", "HTML", "{}"],
)
def test_a_device_that_cannot_be_looked_at_is_not_cleaned(
    world: World, devices: OneTimeUse, cleaner: Cleaner, path: str, effect: Any
) -> None:
    rp_uuid = devices.burned()
    world.placement.add(effect, method="GET", path=path)
    code, said = cleaner.run()
    world.placement.clear()
    assert (code, cleaner.cleaned, devices.inventory(rp_uuid).reserved) == (1, 0, 1)
    assert "stays burned: " in said
    assert "Traceback" not in said


@pytest.mark.parametrize("effect", [faults.answer(503), faults.answer(409)], ids=["503", "409"])
def test_a_device_that_cannot_be_released_stays_burned_and_is_cleaned_again(
    world: World, devices: OneTimeUse, cleaner: Cleaner, effect: Any
) -> None:
    rp_uuid = devices.burned()
    world.placement.add(effect, method="PUT", times=1)
    code, said = cleaner.run()
    assert (code, cleaner.cleaned, devices.inventory(rp_uuid).reserved) == (1, 1, 1)
    assert "stays burned: " in said
    assert cleaner.run()[0] == 0
    assert (cleaner.cleaned, devices.inventory(rp_uuid).reserved) == (2, 0)


def test_a_release_whose_answer_was_lost_is_a_release(world: World, devices: OneTimeUse, cleaner: Cleaner) -> None:
    rp_uuid = devices.burned()

    def fail() -> None:
        raise ConnectionError

    world.placement.add(faults.after(fail), method="PUT", times=1)
    assert cleaner.run()[0] == 1
    code, said = cleaner.run()
    assert (code, cleaner.cleaned) == (0, 1)
    assert "is not reserved any more" in said
    assert devices.settle(rp_uuid) is Settled.LOWERED
    assert not devices.row(rp_uuid).burned


def test_a_hold_set_between_two_of_its_looks_is_kept(world: World, devices: OneTimeUse, cleaner: Cleaner) -> None:
    rp_uuid = devices.burned()

    def release_and_hold() -> None:
        """The burn ends by hand, and then somebody holds the device: to Placement it looks as before."""
        answer = world.call("POST", f"/autoclave/v1/burned/{rp_uuid}/release")
        assert answer.status_code == 200
        devices.hold(rp_uuid)

    world.placement.add(faults.before(release_and_hold), method="GET", path="/allocations$", times=1)
    assert cleaner.run()[0] == 0
    assert (cleaner.cleaned, devices.inventory(rp_uuid).reserved) == (0, 1)


def test_a_confirmation_between_two_of_its_looks_is_no_release(
    world: World, devices: OneTimeUse, cleaner: Cleaner
) -> None:
    rp_uuid = devices.add()
    devices.delete(devices.use(rp_uuid))
    world.placement.add(faults.before(lambda: devices.settle(rp_uuid)), method="GET", path="/allocations$", times=1)
    code, _ = cleaner.run()
    assert (code, devices.inventory(rp_uuid).reserved, devices.row(rp_uuid).device.burn_confirmed) == (1, 1, True)
    assert cleaner.run()[0] == 0
    assert devices.settle(rp_uuid) is Settled.LOWERED


def test_an_autoclave_that_says_something_else_is_not_believed(
    world: World, devices: OneTimeUse, cleaner: Cleaner
) -> None:
    rp_uuid = devices.burned()
    world.db.dispose()
    (world.directory / "autoclave.sqlite").rename(world.directory / "away")
    code, said = cleaner.run()
    (world.directory / "away").rename(world.directory / "autoclave.sqlite")
    assert (code, cleaner.cleaned) == (1, 0)
    assert f"What is burned on {HOST} is not known" in said
    assert devices.inventory(rp_uuid).reserved == 1
