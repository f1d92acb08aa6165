"""The story of a drive, told with the real ``openstack`` command on simulated hosts.

Every fact is checked and prints one line; the exit code is 0 only if all of them hold. Nothing but a
temporary directory is written, and nothing but the service that is started here is stopped.
"""

import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

Seen = TypeVar("Seen")
BIN = Path(sys.executable).parent
HOST = "sim-1"
SLOT = "0000:41:00.0"
SECRET = "the secret of a tenant"


class Demo:
    """The service, its clients, and the facts."""

    def __init__(self, data_dir: Path, url: str) -> None:
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

    def show(self) -> Any:
        """What the operator sees of the drive.

        :raises SystemExit: the command failed.
        """
        arguments = ("device", "show", f"{HOST}/{SLOT}")
        print("   $", shlex.join(["autoclave", *arguments]), flush=True)
        done = self._run("autoclave", *arguments, "-f", "json")
        if done.returncode:
            sys.exit(f"FAIL autoclave {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
        return json.loads(done.stdout)

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

    def allocate(self, profile: str) -> str:
        """Ask for an accelerator and bind it, and return the request's UUID."""
        request = str(self.openstack("accelerator", "arq", "create", profile)["uuid"])
        # `openstack accelerator arq bind` looks the server up in Nova, which is not here.
        self.sim("bind", HOST, SLOT, request)
        state = self.openstack("accelerator", "arq", "show", request)["state"]
        self.check("the request is bound", state == "Bound", state)
        return request

    def _run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([BIN / command, *arguments], env=self._environ, capture_output=True, text=True)


def main() -> None:
    """Tell the story."""
    with tempfile.TemporaryDirectory(prefix="autoclave-demo-") as directory, service(Path(directory)) as demo:
        device, provider = discovered(demo)
        group = "resources:CUSTOM_NVME_144D_A808=1,trait:HW_NVME_CES=required"
        demo.openstack("accelerator", "device", "profile", "create", "scratch", "--group", group)
        one_life(demo, device, provider)
        failed_erase(demo, device, provider)
    print("\nEvery fact held.")


def discovered(demo: Demo) -> tuple[str, str]:
    """Drives are found and offered, and the host's own is not. Returns the UUIDs of a drive and its provider."""
    demo.say("Two hosts with three drives each; one drive of each host is its own")
    rows = demo.openstack("accelerator", "device", "list")
    where = {(row["hostname"], json.loads(row["std_board_info"])["pci_address"]): row["uuid"] for row in rows}
    demo.check("four drives are devices", len(where) == 4, ", ".join(f"{host} {slot}" for host, slot in where))
    demo.check("no host's own drive is", all(slot != "0000:01:00.0" for _, slot in where), "0000:01:00.0 is missing")
    device = where[HOST, SLOT]
    seen = demo.get(f"/autoclave/v1/devices/{device}")
    demo.check("the drive is available", seen["device_state"] == "available", seen["state_reason"])
    reserved = demo.reserved(seen["rp_uuid"])
    demo.check("Placement offers it", reserved == 0, f"reserved = {reserved}")
    return device, seen["rp_uuid"]


def one_life(demo: Demo, device: str, provider: str) -> None:
    """Bound, written to, given back, erased, offered again."""
    demo.say("A tenant gets the drive and writes to it")
    request = demo.allocate("scratch")
    state = demo.show()["device_state"]
    demo.check("the drive is allocated", state == "allocated", state)
    demo.sim("write", HOST, SLOT, SECRET)
    demo.check("the tenant's bytes are on it", demo.sim("find", HOST, SLOT, SECRET) == 0, repr(SECRET))

    demo.say("The tenant gives it back: it is erased before anybody else can have it")
    demo.sim("fault", HOST, SLOT, "sanitize-seconds", "4")
    demo.openstack("accelerator", "arq", "delete", request, answers=False)
    seen = demo.watch(device)
    demo.check("the drive is available again", seen["device_state"] == "available", seen["state_reason"])
    demo.check("the bytes are gone", demo.sim("find", HOST, SLOT, SECRET, expected=1) == 1, "not found")
    reserved = demo.reserved(provider)
    demo.check("Placement offers it again", reserved == 0, f"reserved = {reserved}")
    events = demo.get(f"/autoclave/v1/devices/{device}/history")["events"]
    proof = next((event["evidence"] for event in events if event["event"] == "cleaned"), None)
    demo.check("the history has the proof", bool(proof), json.dumps(proof))


def failed_erase(demo: Demo, device: str, provider: str) -> None:
    """An erase that fails leaves the drive out of reach, until it is cleaned again."""
    demo.say("The next tenant's drive fails to erase")
    request = demo.allocate("scratch")
    demo.sim("write", HOST, SLOT, SECRET)
    demo.sim("clear", HOST, SLOT)
    demo.sim("fault", HOST, SLOT, "sanitize-fails")
    demo.openstack("accelerator", "arq", "delete", request, answers=False)
    demo.watch(device)
    seen = demo.show()
    demo.check("the drive is in error, and says why", seen["device_state"] == "error", seen["state_reason"])
    demo.check("the bytes are still there", demo.sim("find", HOST, SLOT, SECRET) == 0, "found")
    reserved = demo.reserved(provider)
    demo.check("Placement does not offer it", reserved == 1, f"reserved = {reserved}")

    demo.say("The operator has it repaired and cleaned again")
    demo.sim("clear", HOST, SLOT)
    demo.openstack("accelerator", "device", "clean", device, answers=False)
    wait_for(lambda: demo.get(f"/autoclave/v1/devices/{device}"), lambda seen: seen["device_state"] != "error", 30)
    seen = demo.watch(device)
    demo.check("the drive is available again", seen["device_state"] == "available", seen["state_reason"])
    demo.check("the bytes are gone", demo.sim("find", HOST, SLOT, SECRET, expected=1) == 1, "not found")
    reserved = demo.reserved(provider)
    demo.check("Placement offers it again", reserved == 0, f"reserved = {reserved}")


@contextmanager
def service(data_dir: Path) -> Iterator[Demo]:
    """``autoclave up --simulate 2``, until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [BIN / "autoclave", "up", "--simulate", "2", "--data-dir", data_dir, "--bind", f"127.0.0.1:{port}"]
    print("   $", *command, flush=True)
    log = data_dir / "demo.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    done = False
    try:
        demo = Demo(data_dir, f"http://127.0.0.1:{port}")
        wait_for(lambda: process.poll() is not None or _ready(demo), bool, 60)
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


if __name__ == "__main__":
    main()
