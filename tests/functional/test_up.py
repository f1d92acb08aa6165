"""``autoclave up`` takes its address and its directory before it touches anything else."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from autoclave.cli.main import main
from autoclave.conf import new_config
from autoclave.exceptions import DatabaseUnavailable, InvalidConfiguration
from autoclave.services.data_dir import CloudsFile, DataDirectory
from autoclave.services.hosts import host_name
from autoclave.services.up import AllInOne
from autoclave.simulator.faults import Fault, FaultKind
from autoclave.simulator.host import Fleet
from freeport import free_port

pytestmark = pytest.mark.thorough


@contextmanager
def running(data_dir: Path, simulate: int = 1, *config: Path) -> Iterator[AllInOne]:
    everything = AllInOne([str(file) for file in config], data_dir, ("127.0.0.1", free_port()), simulate)
    try:
        everything.start()
        yield everything
    finally:
        everything.stop()


def health(url: str) -> dict[str, Any]:
    found: dict[str, Any] = requests.get(f"{url}/healthcheck", timeout=30).json()
    return found


def test_api_answers_while_a_host_is_still_looked_at(tmp_path: Path) -> None:
    """The drive of one host does not answer; the other host is known, and how many are not is said."""
    stuck = Fleet(tmp_path).ensure("sim-1", 1)
    address = next(slot.address for slot in stuck.inventory.slots.values() if not slot.spec.mounted)
    stuck.set_fault(address, Fault(FaultKind.NVME_HANGS))
    everything = AllInOne([], tmp_path, ("127.0.0.1", free_port()), 2)
    with ThreadPoolExecutor(1) as starter:
        started = starter.submit(everything.start)
        try:
            while not (tmp_path / "clouds.yaml").exists():
                assert not started.done()
            while (found := health(everything.url))["hosts_not_yet_known"] > 1:
                assert not started.done()
            assert (found["status"], found["hosts_not_yet_known"]) == ("ok", 1)
            listed = requests.get(f"{everything.url}/autoclave/v1/devices", timeout=30).json()["devices"]
            assert "sim-2" in {each["hostname"] for each in listed}
        finally:
            stuck.clear_faults()
        started.result()
        assert health(everything.url)["hosts_not_yet_known"] == 0
        everything.stop()


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


def test_the_file_of_the_operator_is_what_simulated_hosts_rehearse(tmp_path: Path) -> None:
    config = tmp_path / "autoclave.conf"
    config.write_text('[nvme]\ndevice_spec = {"address": "0000:42:00.0", "clear_action": "zero"}\n')
    with running(tmp_path / "data", 1, config) as everything:
        listed = requests.get(f"{everything.url}/autoclave/v1/devices", timeout=30).json()["devices"]
        assert [each["pci_address"] for each in listed] == ["0000:42:00.0"]


@pytest.mark.parametrize(("said", "interval"), [("", 5), ("[agent]\nperiodic_interval = 7\n", 7)], ids=["not", "said"])
def test_simulated_hosts_are_looked_at_as_often_as_the_operator_says(
    tmp_path: Path, said: str, interval: float
) -> None:
    config = tmp_path / "autoclave.conf"
    config.write_text(said)
    with running(tmp_path / "data", 2, config) as everything:
        assert [everything._host(number).agent.periodic_interval for number in (1, 2)] == [interval, interval]


def test_a_device_spec_that_no_agent_takes_is_not_taken_on_simulated_hosts(tmp_path: Path) -> None:
    config = tmp_path / "autoclave.conf"
    config.write_text('[nvme]\ndevice_spec = {"vendor_id": "144d", "clear_action": "sanitise"}\n')
    with (
        pytest.raises(InvalidConfiguration, match=r"\[nvme\] device_spec, entry 1, key 'clear_action'"),
        running(tmp_path / "data", 1, config),
    ):
        pass


def test_a_port_that_is_taken_is_told_in_words_before_anything_is_written(tmp_path: Path, taken: int) -> None:
    data_dir = tmp_path / "data"
    everything = AllInOne([], data_dir, ("127.0.0.1", taken), 1)
    with pytest.raises(InvalidConfiguration) as refused:
        everything.start()
    everything.stop()
    assert str(refused.value) == (
        f"[api] host_ip, port: cannot listen on 127.0.0.1:{taken}: another program listens there; "
        "stop it, or choose another address (`autoclave up` takes --bind HOST:PORT)"
    )
    assert not data_dir.exists()


@pytest.mark.parametrize("strategy", ["keystone", "http_basic"])
def test_a_file_that_wants_authentication_is_not_served_without(tmp_path: Path, strategy: str) -> None:
    config = tmp_path / "autoclave.conf"
    config.write_text(f"[api]\nauth_strategy = {strategy}\n")
    with pytest.raises(InvalidConfiguration, match=rf"\[api\] auth_strategy: is {strategy}, but .autoclave up. treats"):
        AllInOne([str(config)], tmp_path, None, 1)
    config.write_text("[api]\nauth_strategy = noauth\n")
    AllInOne([str(config)], tmp_path, None, 1).stop()


def test_one_directory_serves_one_process_whatever_its_hosts_are(tmp_path: Path) -> None:
    with running(tmp_path):
        before = sorted(path.name for path in tmp_path.iterdir())
        for simulate in (0, 1, 2):
            second = AllInOne([], tmp_path, ("127.0.0.1", free_port()), simulate)
            with pytest.raises(InvalidConfiguration, match=r"data_dir: .* is used by another .autoclave up."):
                second.start()
            second.stop()
        assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_what_has_stopped_leaves_address_and_directory_to_the_next(tmp_path: Path) -> None:
    for _ in range(2):
        with running(tmp_path) as everything:
            assert requests.get(f"{everything.url}/healthcheck", timeout=30).status_code == 200
        with pytest.raises(requests.ConnectionError):
            requests.get(f"{everything.url}/healthcheck", timeout=30)


@pytest.mark.parametrize(
    ("first", "then", "remedy"), [(True, False, "with --simulate"), (False, True, "without --simulate")]
)
def test_real_and_simulated_hosts_do_not_share_a_directory(
    tmp_path: Path, first: bool, then: bool, remedy: str
) -> None:
    directory = DataDirectory(tmp_path)
    directory.take(simulated=first)
    directory.give_back()
    with pytest.raises(InvalidConfiguration, match=f"{tmp_path} is for .*{remedy}.*--data-dir"):
        directory.take(simulated=then)
    directory.give_back()
    directory.take(simulated=first)
    directory.give_back()


@pytest.mark.parametrize(("made", "simulated"), [("sim", False), ("placement.db", True)])
def test_a_directory_of_an_earlier_version_is_known_by_what_is_in_it(
    tmp_path: Path, made: str, simulated: bool
) -> None:
    (tmp_path / made).mkdir()
    directory = DataDirectory(tmp_path)
    with pytest.raises(InvalidConfiguration, match="is for"):
        directory.take(simulated=simulated)
    directory.give_back()
    directory.take(simulated=not simulated)
    directory.give_back()


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidConfiguration, match=r"data_dir: .*file/data cannot be used .Not a directory."):
        DataDirectory(tmp_path / "file" / "data").take(simulated=True)


def test_who_may_connect_from_elsewhere_must_be_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"host_ip: 0\.0\.0\.0 is not a loopback.*noauth_beyond_loopback"):
        AllInOne([], tmp_path, ("0.0.0.0", 6666), 1)
    config = tmp_path / "autoclave.conf"
    config.write_text("[api]\nnoauth_beyond_loopback = true\n")
    AllInOne([str(config)], tmp_path, ("0.0.0.0", 6666), 1).stop()


@pytest.mark.parametrize("name", ["a?b", "a%41b", "a#b", "a$b", "a${host}b", "with space é"])
def test_a_data_directory_may_have_any_name(tmp_path: Path, name: str) -> None:
    with running(tmp_path / name):
        pass
    made = {path.name for path in (tmp_path / name).iterdir()}
    assert {"autoclave.db", "placement.db", "clouds.yaml", "sim"} <= made
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("file", "remedy"), [("autoclave.db", "clean_on_discovery = true"), ("placement.db", "move it away")]
)
def test_a_damaged_database_is_named_with_what_to_do_about_it(tmp_path: Path, file: str, remedy: str) -> None:
    with running(tmp_path):
        pass
    damaged = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(damaged[:6000] + b"x" * 30000)
    (tmp_path / f"{file}-wal").unlink(missing_ok=True)
    with pytest.raises(DatabaseUnavailable) as refused, running(tmp_path):
        pass
    assert str(refused.value).startswith(f"{tmp_path / file} is damaged")
    assert remedy in str(refused.value)
    assert "\n" not in str(refused.value)


def test_any_free_port_may_be_asked_for_and_the_one_that_was_taken_is_told(tmp_path: Path) -> None:
    everything = AllInOne([], tmp_path, ("127.0.0.1", 0), 1)
    try:
        everything.start()
        assert requests.get(f"{everything.url}/healthcheck", timeout=30).status_code == 200
        assert everything.url in (tmp_path / "clouds.yaml").read_text()
    finally:
        everything.stop()


@pytest.fixture
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable says where anything is."""
    for name in ("AUTOCLAVE_URL", "AUTOCLAVE_DATA_DIR", "OS_CLIENT_CONFIG_FILE", "OS_CLOUD"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("nothing_said")
def test_what_it_tells_another_terminal_is_all_that_a_command_needs_there(tmp_path: Path) -> None:
    with running(tmp_path / "it's $HOME") as everything:
        words = 'autoclave device list -f value -c hostname && cat "$OS_CLIENT_CONFIG_FILE"'
        done = subprocess.run(
            ["bash", "-c", f"PATH={Path(sys.executable).parent}:$PATH\n{everything.clouds.exports}{words}"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout.startswith("sim-1\n"), done.stderr
        assert "autoclave" in yaml.safe_load(done.stdout.replace("sim-1\n", ""))["clouds"]


@pytest.mark.usefixtures("nothing_said")
def test_where_a_service_is_said_to_be_goes_before_the_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    CloudsFile(tmp_path).write("http://127.0.0.1:1", compute=False)
    monkeypatch.setenv("AUTOCLAVE_DATA_DIR", str(tmp_path))
    assert main(["device", "list"]) == 1
    assert "http://127.0.0.1:1 does not answer" in capsys.readouterr().err
    monkeypatch.setenv("AUTOCLAVE_URL", "http://127.0.0.1:2")
    assert main(["device", "list"]) == 1
    assert "http://127.0.0.1:2 does not answer" in capsys.readouterr().err
    assert main(["device", "list", "--url", "http://127.0.0.1:3"]) == 1
    assert "http://127.0.0.1:3 does not answer" in capsys.readouterr().err


@pytest.mark.usefixtures("nothing_said")
def test_what_says_where_a_service_is_may_be_written_as_yaml_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clouds = CloudsFile(tmp_path)
    clouds.write("http://127.0.0.1:1", compute=True)
    clouds.path.write_text(yaml.safe_dump(yaml.safe_load(clouds.path.read_text()), default_flow_style=True))
    monkeypatch.setenv("AUTOCLAVE_DATA_DIR", str(tmp_path))
    assert main(["device", "list"]) == 1
    assert "http://127.0.0.1:1 does not answer" in capsys.readouterr().err


@pytest.mark.usefixtures("nothing_said")
@pytest.mark.parametrize("written", [None, "clouds: {}", "clouds: [", "", "clouds: {autoclave: 1}"])
def test_a_data_directory_that_does_not_say_where_it_is_served_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], written: str | None
) -> None:
    if written is not None:
        (tmp_path / "clouds.yaml").write_text(written)
    monkeypatch.setenv("AUTOCLAVE_DATA_DIR", str(tmp_path))
    assert main(["device", "list"]) == 1
    told = capsys.readouterr().err
    assert str(tmp_path / "clouds.yaml") in told
    assert "Traceback" not in told


@pytest.mark.parametrize("name", ["a/b", "..", "x" * 300, "two words"])
def test_a_name_that_is_no_hosts_name_is_refused_as_what_it_is(name: str) -> None:
    conf = new_config(overrides={("agent", "resource_provider_name"): name})
    with pytest.raises(InvalidConfiguration, match=r"\[agent\] resource_provider_name: .* is not a host name"):
        host_name(conf)


def test_instances_are_served_unless_the_file_says_that_they_are_not(tmp_path: Path) -> None:
    config = tmp_path / "autoclave.conf"
    config.write_text("[compute]\nenabled = false\n")
    with running(tmp_path / "without", 1, config) as everything:
        assert requests.get(f"{everything.url}/compute/v2.1", timeout=30).status_code == 404
        assert requests.get(f"{everything.url}/image/v2/images", timeout=30).status_code == 404
        assert "compute_endpoint_override" not in (everything.data_dir / "clouds.yaml").read_text()
    with running(tmp_path / "with") as everything:
        cloud = yaml.safe_load((everything.data_dir / "clouds.yaml").read_text())["clouds"]["autoclave"]
        assert requests.get(cloud["compute_endpoint_override"], timeout=30).json()["version"]["version"] == "2.96"
        assert requests.get(cloud["image_endpoint_override"], timeout=30).json()["versions"][0]["id"] == "v2.17"


@pytest.mark.parametrize("there", [True, False])
def test_a_real_host_serves_instances_if_it_has_what_runs_guests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    (tmp_path / "libvirt").mkdir()
    (tmp_path / "libvirt" / "__init__.py").write_text("")
    if there:
        monkeypatch.delitem(sys.modules, "libvirt", raising=False)
        monkeypatch.syspath_prepend(str(tmp_path))
    else:
        monkeypatch.setitem(sys.modules, "libvirt", None)  # the system's own way to say that there is none
    everything = AllInOne([], tmp_path, ("127.0.0.1", free_port()), 0)
    assert everything.runs_instances == there
