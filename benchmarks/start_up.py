"""Seconds until `autoclave up --simulate N` answers, and until it knows all hosts; and what it then costs at rest.

See README.md. ``benchmarks/start_up.py 2 10 40`` takes other numbers of hosts.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import requests

AT_REST = 20.0
"""Seconds over which the cost of the periods is measured: four of them."""
_LOOK = 0.02
_ANNOUNCED = "Autoclave listens on"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _cpu(pid: int) -> float:
    """Seconds of CPU of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _first_answer(url: str, process: "subprocess.Popen[str]", began: float) -> float:
    while process.poll() is None:
        try:
            if requests.get(f"{url}/healthcheck", timeout=60).ok:
                return time.monotonic() - began
        except requests.ConnectionError:
            time.sleep(_LOOK)
    raise SystemExit(f"autoclave up ended with {process.returncode}")


def measure(hosts: int) -> None:
    """Start it with *hosts* hosts on an empty directory, and print a line."""
    with tempfile.TemporaryDirectory() as directory:
        port = _free_port()
        autoclave = Path(sys.executable).parent / "autoclave"
        command = [str(autoclave), "up", "--simulate", str(hosts), "--data-dir", directory]
        began = time.monotonic()
        with subprocess.Popen(
            [*command, "--bind", f"127.0.0.1:{port}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            try:
                answered = _first_answer(f"http://127.0.0.1:{port}", process, began)
                assert process.stdout is not None
                while not process.stdout.readline().startswith(_ANNOUNCED):
                    if process.poll() is not None:
                        raise SystemExit(f"autoclave up ended with {process.returncode}")
                known, spent = time.monotonic() - began, _cpu(process.pid)
                devices = requests.get(f"http://127.0.0.1:{port}/autoclave/v1/devices", timeout=60).json()["devices"]
                time.sleep(AT_REST)
                cores = (_cpu(process.pid) - spent) / AT_REST
            finally:
                process.terminate()
    print(
        f"{hosts:>3} hosts, {len(devices):>3} devices: first answer after {answered:5.1f} s, all known after "
        f"{known:5.1f} s ({spent:5.1f} s of CPU), then {cores:4.2f} cores"
    )


if __name__ == "__main__":
    for number in map(int, sys.argv[1:] or ("2", "10", "40")):
        measure(number)
