"""``autoclave sim bind``: a rehearsal needs no Nova."""

from pathlib import Path

import pytest
from api_world import HOST, World, new_uuid

from autoclave.cli.main import main
from autoclave.rules.device_lifecycle import DeviceState
from autoclave.services.data_dir import CloudsFile
from autoclave.simulator.host import Fleet

SLOT = "0000:41:00.0"


@pytest.fixture
def data_dir(tmp_path: Path) -> str:
    """One simulated host, of the name of the world's."""
    Fleet(tmp_path).ensure(HOST, 1)
    return str(tmp_path)


def bind(url: str, data_dir: str, *words: str) -> int:
    return main(["sim", "bind", *words, "--url", url, "--data-dir", data_dir])


def test_a_request_gets_the_drive_that_is_named_for_the_instance_that_is_named(
    world: World, url: str, data_dir: str, capsys: pytest.CaptureFixture[str]
) -> None:
    device = world.add_device(SLOT)
    world.add_profile()
    arq, instance = world.add_arq(), new_uuid()

    assert bind(url, data_dir, HOST, SLOT, arq, "--instance", instance) == 0

    assert instance in capsys.readouterr().out
    bound = world.call("GET", f"/v2/accelerator_requests/{arq}").json
    assert (bound["state"], bound["instance_uuid"]) == ("Bound", instance)
    assert world.device(device.uuid).device_state is DeviceState.ALLOCATED
    assert world.reserved(device) == 1


def test_the_service_of_the_data_directory_is_asked_if_no_other_is_named(
    world: World, url: str, tmp_path: Path, data_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AUTOCLAVE_URL", raising=False)
    device = world.add_device(SLOT)
    world.add_profile()
    CloudsFile(tmp_path).write(url, compute=False)
    assert main(["sim", "bind", HOST, SLOT, world.add_arq(), "--data-dir", data_dir]) == 0
    assert world.device(device.uuid).device_state is DeviceState.ALLOCATED


def test_a_drive_that_is_not_available_is_refused_with_the_reason(
    world: World, url: str, data_dir: str, capsys: pytest.CaptureFixture[str]
) -> None:
    world.add_device(SLOT, device_state=DeviceState.ERROR)
    world.add_profile()
    arq = world.add_arq()

    assert bind(url, data_dir, HOST, SLOT, arq) != 0

    assert "it is error" in capsys.readouterr().err
    assert world.call("GET", f"/v2/accelerator_requests/{arq}").json["state"] == "BindFailed"


def test_a_request_that_a_lost_variable_names_is_asked_for(
    url: str, data_dir: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bind(url, data_dir, HOST, SLOT, "")
    assert "argument ARQ: '' is not a UUID; `openstack accelerator arq create" in capsys.readouterr().err


def test_a_host_that_is_not_simulated_is_left_alone(world: World, url: str, tmp_path: Path) -> None:
    device = world.add_device(SLOT)
    world.add_profile()

    assert bind(url, str(tmp_path), HOST, SLOT, world.add_arq()) != 0

    assert world.device(device.uuid) == device
