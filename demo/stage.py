"""What the stories of the demo are told with: the service, its clients, and facts that are checked."""

import json
import os
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

Seen = TypeVar("Seen")
BIN = Path(sys.executable).parent


class Demo:
    """The service, its clients, and the facts."""

    def __init__(self, data_dir: Path, url: str) -> None:
        self.data_dir = data_dir
        self.url = url
        self._environ = os.environ | {
            "AUTOCLAVE_DATA_DIR": str(data_dir),
            "AUTOCLAVE_URL": url,
            "OS_CLIENT_CONFIG_FILE": str(data_dir / "clouds.yaml"),
            "OS_CLOUD": "autoclave",
        }
        os.environ.update(self._environ)

    def say(self, text: str) -> None:
        """A heading."""
        print(f"\n== {text}", flush=True)

    def check(self, fact: str, holds: bool, seen: object) -> None:
        """Print the fact with what was seen.

        :raises SystemExit: it does not hold.
        """
        print(f"{'ok  ' if holds else 'FAIL'} {fact}: {seen}", flush=True)
        if not holds:
            sys.exit(1)

    def openstack(self, *arguments: str, answers: bool = True) -> Any:
        """Run the ``openstack`` command and return its answer.

        :raises SystemExit: it failed.
        """
        print("   $", shlex.join(["openstack", *arguments]), flush=True)
        done = self._run("openstack", *arguments, *(["-f", "json"] if answers else []))
        if done.returncode:
            sys.exit(f"FAIL openstack {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return json.loads(done.stdout) if answers else None

    def sim(self, *arguments: str, expected: int = 0) -> int:
        """Run ``autoclave sim``.

        :raises SystemExit: the exit code is another than *expected*.
        """
        print("   $", shlex.join(["autoclave", "sim", *arguments]), flush=True)
        done = self._run("autoclave", "sim", *arguments)
        if done.returncode != expected:
            sys.exit(f"FAIL autoclave sim {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
        return done.returncode

    def autoclave(self, *arguments: str, answers: bool = True) -> Any:
        """Run the ``autoclave`` command and return its answer.

        :raises SystemExit: it failed.
        """
        print("   $", shlex.join(["autoclave", *arguments]), flush=True)
        done = self._run("autoclave", *arguments, *(["-f", "json"] if answers else []))
        if done.returncode:
            sys.exit(f"FAIL autoclave {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return json.loads(done.stdout) if answers else None

    def run(self, *command: str) -> str:
        """Run a program of the project and return what it said.

        :raises SystemExit: it failed.
        """
        print("   $", shlex.join(command), flush=True)
        done = subprocess.run([sys.executable, *command], env=self._environ, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"FAIL {shlex.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def get(self, path: str) -> Any:
        """What the operator's HTTP interface answers; it is quick enough to watch an erase with."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=10) as answer:
            return json.load(answer)

    def reserved(self, provider: str) -> int:
        """What Placement has reserved of the drive: 0, it is offered; 1, it is not."""
        (inventory,) = self.openstack("resource", "provider", "inventory", "list", provider)
        return int(inventory["reserved"])

    def watch(self, device: str) -> dict[str, Any]:
        """Show state and progress until the drive is idle and nothing of it is owed to Placement."""
        shown = ""

        def look() -> dict[str, Any]:
            nonlocal shown
            seen: dict[str, Any] = self.get(f"/autoclave/v1/devices/{device}")
            progress = seen["progress"]
            percent = "" if progress["percent"] is None else f" {progress['percent']:.0f} %"
            line = f"{seen['device_state']}{percent}"
            if line != shown:
                shown = line
                print(f"     {line}", flush=True)
            return seen

        return wait_for(
            look, lambda seen: seen["device_state"] in ("available", "error") and not seen["release_pending"], 60
        )

    def _run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([BIN / command, *arguments], env=self._environ, capture_output=True, text=True)


@contextmanager
def service(data_dir: Path, configuration: str) -> Iterator[Demo]:
    """``autoclave up --simulate 2``, until the block ends.

    :param configuration: what ``autoclave.conf`` says.
    """
    config_file = data_dir / "autoclave.conf"
    config_file.write_text(configuration)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [BIN / "autoclave", "up", "--simulate", "2", "--data-dir", data_dir, "--bind", f"127.0.0.1:{port}"]
    command += ["--config-file", config_file]
    print("   $", *command, flush=True)
    log = data_dir / "demo.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    done = False
    try:
        demo = Demo(data_dir, f"http://127.0.0.1:{port}")
        wait_for(lambda: process.poll() is not None or _ready(demo), bool, 180)
        demo.check("the service is healthy and has found its drives", process.poll() is None and _ready(demo), demo.url)
        yield demo
        process.terminate()
        demo.check("the service ends when it is told to", process.wait(30) == 0, "exit code 0")
        done = True
    finally:
        if not done:
            print(f"\n== the end of the service's log\n{log.read_text(errors='replace')[-6000:]}", flush=True)
        if process.poll() is None:
            process.kill()
            process.wait()


def _ready(demo: Demo) -> bool:
    try:
        demo.get("/healthcheck")
        devices = demo.get("/autoclave/v1/devices")["devices"]
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
    return len(devices) == 4 and all(
        device["device_state"] == "available" and not device["release_pending"] for device in devices
    )


def wait_for(look: Callable[[], Seen], until: Callable[[Seen], bool], seconds: float) -> Seen:
    """Look again and again until it is so or *seconds* have passed, and return what was seen last."""
    patience = time.monotonic() + seconds
    while not until(seen := look()) and time.monotonic() < patience:
        time.sleep(0.2)
    return seen
