"""``autoclave.wsgi:application`` under the servers that operators have."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from processes import Process, written

from autoclave.db import schema
from autoclave.db.engine import Database
from freeport import free_port

pytestmark = pytest.mark.thorough

BIN = Path(sys.executable).parent
APPLICATION = "autoclave.wsgi:application"
SERVERS = {
    "gunicorn": ("gunicorn", "--workers", "2", "--threads", "4", "--bind", "{address}", APPLICATION),
    "gunicorn, loaded before the fork": (
        *("gunicorn", "--preload", "--workers", "2", "--threads", "4", "--bind", "{address}"),
        APPLICATION,
    ),
    "uWSGI": (
        *("uwsgi", "--master", "--processes", "2", "--threads", "4", "--enable-threads", "--die-on-term"),
        *("--http", "{address}", "--http-chunked-input", "--module", APPLICATION),
    ),
}
PROFILES = "/v2/device_profiles"
JSON = {"Content-Type": "application/json"}


def profile(name: str) -> bytes:
    return b'[{"name": "%s", "groups": [{"resources:FPGA": "1"}]}]' % name.encode()


@pytest.fixture
def config_dir(tmp_path: Path) -> Path:
    url = f"sqlite:///{tmp_path}/autoclave.sqlite"
    database = Database(url)
    schema.upgrade(database)
    database.dispose()
    options = {
        ("database", "connection"): url,
        (None, "transport_url"): "rabbit://nobody:nothing@127.0.0.1:1/",
        ("placement", "endpoint"): "http://127.0.0.1:1",
        ("placement", "auth_type"): "none",
        ("api", "auth_strategy"): "noauth",
        ("api", "noauth_beyond_loopback"): True,
        ("compute", "enabled"): True,
        ("agent", "data_dir"): str(tmp_path / "data"),
    }
    (tmp_path / "autoclave.conf").write_text(written(options))
    return tmp_path


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest, config_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    program, *arguments = SERVERS[request.param]
    path = shutil.which(program, path=f"{BIN}:{os.environ['PATH']}")
    if path is None:
        pytest.skip(f"there is no {program}")
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("OS_AUTOCLAVE_CONFIG_DIR", str(config_dir))
    argv = [path, *(argument.format(address=address) for argument in arguments)]
    process = Process(argv, config_dir / "server.log")
    process.wait_for_http(f"http://{address}")
    yield f"http://{address}"
    process.terminate()


def test_a_server_answers_by_all_its_processes(url: str) -> None:
    assert requests.post(url + PROFILES, data=profile("plain"), headers=JSON).status_code == 201
    for _ in range(20):
        [found] = requests.get(url + PROFILES).json()["device_profiles"]
        assert found["name"] == "plain"


def test_a_chunked_body_arrives_as_a_whole(url: str) -> None:
    answer = requests.post(url + PROFILES, data=iter([profile("chunked")[:20], profile("chunked")[20:]]), headers=JSON)
    assert answer.status_code == 201, answer.text


def test_an_image_is_sent_and_fetched(url: str) -> None:
    made = requests.post(url + "/image/v2/images", json={"disk_format": "raw", "container_format": "bare"})
    file = f"{url}/image/v2/images/{made.json()['id']}/file"
    octets = {"Content-Type": "application/octet-stream"}
    parts = [os.urandom(100_000) for _ in range(50)]
    assert requests.put(file, data=iter(parts), headers=octets).status_code == 204
    assert requests.get(file).content == b"".join(parts)


def test_a_chunked_body_that_breaks_off_changes_nothing(url: str, config_dir: Path) -> None:
    host, port = url.removeprefix("http://").split(":")
    head = f"POST {PROFILES} HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n"
    body = profile("cut")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n%x\r\n%s\r\n" % (len(body), body))
        connection.sendall(b"no chunk\r\n")
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert b" 201 " not in answer
    assert requests.get(url + PROFILES).json()["device_profiles"] == []


def load(environment: dict[str, str], statement: str = "") -> subprocess.CompletedProcess[str]:
    program = f"import autoclave.wsgi\n{statement}"
    return subprocess.run(
        [sys.executable, "-c", program], env=os.environ | environment, capture_output=True, text=True, timeout=120
    )


def test_nothing_is_open_before_the_server_forks(config_dir: Path) -> None:
    looked = """
import os, threading
assert threading.active_count() == 1, threading.enumerate()
for fd in [fd for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]:
    link = os.readlink(f"/proc/self/fd/{fd}")
    assert not link.startswith("socket:") and not link.endswith(".sqlite"), link
"""
    loaded = load({"OS_AUTOCLAVE_CONFIG_DIR": str(config_dir)}, looked)
    assert loaded.returncode == 0, loaded.stderr


def test_files_can_be_named(config_dir: Path) -> None:
    (config_dir / "autoclave.conf").rename(config_dir / "first.conf")
    (config_dir / "second.conf").write_text("[api]\nauth_strategy = http_basic\n")
    named = {"OS_AUTOCLAVE_CONFIG_DIR": str(config_dir), "OS_AUTOCLAVE_CONFIG_FILES": "first.conf;second.conf"}
    loaded = load(named)
    assert "http_basic_auth_user_file" in loaded.stderr.splitlines()[-1], loaded.stderr


def test_no_configuration_is_told(tmp_path: Path) -> None:
    loaded = load({"OS_AUTOCLAVE_CONFIG_DIR": str(tmp_path)})
    assert loaded.returncode != 0
    assert f"CRITICAL autoclave.wsgi Autoclave's api cannot start with {tmp_path}/autoclave.conf: " in loaded.stderr


def test_noauth_is_refused_unless_it_is_meant(config_dir: Path) -> None:
    file = config_dir / "autoclave.conf"
    file.write_text(file.read_text().replace("noauth_beyond_loopback = True", ""))
    loaded = load({"OS_AUTOCLAVE_CONFIG_DIR": str(config_dir)})
    assert "[api] auth_strategy: is noauth" in loaded.stderr.splitlines()[-1]


def test_a_server_says_why_it_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OS_AUTOCLAVE_CONFIG_DIR", str(tmp_path))
    argv = [str(BIN / "gunicorn"), "--bind", f"127.0.0.1:{free_port()}", APPLICATION]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert ended.returncode != 0
    assert "Autoclave's api cannot start" in ended.stderr
