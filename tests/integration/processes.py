"""Real processes for tests: the ``autoclave`` command, and what its clients see."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import requests

COMMAND = str(Path(sys.executable).parent / "autoclave")
PATIENCE = 120
"""Seconds after which something that is waited for counts as never happening."""


def wait_until(what: str, happened: Callable[[], Any], log: Callable[[], str] = str) -> Any:
    """The first true answer of *happened*; fails, with *log*, if none comes."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if answer := happened():
            return answer
        time.sleep(0.1)
    raise AssertionError(f"in {PATIENCE} s never seen: {what}\n{log()}")


class Process:
    """A command that runs until it is told otherwise; its output is in *log*."""

    def __init__(self, argv: Sequence[str], log: Path) -> None:
        self._log = log
        with log.open("ab") as output:
            self._popen = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_for_http(self, url: str) -> None:
        """Wait until *url* answers; fails if the process ends before."""

        def answers() -> bool:
            assert self._popen.poll() is None, f"ended with {self._popen.returncode}:\n{self.log}"
            with contextlib.suppress(requests.ConnectionError):
                requests.get(url, timeout=PATIENCE)
                return True
            return False

        wait_until(f"an answer from {url}", answers, lambda: self.log)

    def wait_for_hosts(self, url: str) -> None:
        """Wait until the ``autoclave up`` at *url* answers and knows its hosts; fails if the process ends before."""
        self.wait_for_http(f"{url}/healthcheck")

        def known() -> bool:
            assert self._popen.poll() is None, f"ended with {self._popen.returncode}:\n{self.log}"
            return not requests.get(f"{url}/healthcheck", timeout=PATIENCE).json().get("hosts_not_yet_known")

        wait_until(f"that {url} knows its hosts", known, lambda: self.log)

    def kill(self) -> None:
        """SIGKILL, at once."""
        self._popen.kill()
        self._popen.wait()

    def terminate(self, patience: float = PATIENCE) -> int:
        """SIGTERM; the exit code. Fails if it does not end within *patience* seconds."""
        self._popen.send_signal(signal.SIGTERM)
        try:
            return self._popen.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"did not end within {patience} s of SIGTERM:\n{self.log}") from None


def written(options: Mapping[tuple[str | None, str], object]) -> str:
    """A configuration file that says *options*, by (group, name)."""
    lines = []
    for group in dict.fromkeys(group for group, _ in options):
        lines.append(f"[{group or 'DEFAULT'}]")
        for (of, name), value in options.items():
            if of == group:
                lines.append(f"{name} = {','.join(value) if isinstance(value, list) else value}")
    return "\n".join(lines) + "\n"


def processes_of(directory: Path) -> dict[int, str]:
    """The running tools of the simulated hosts in *directory*: command line by process id."""
    tools = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if f"{directory}/sim/" in line and "/bin/" in line:
                    tools[int(entry.name)] = line
    return tools


class Cloud:
    """What Nova and an operator do, over HTTP.

    :param accelerator: URL of the accelerator API.
    :param placement: URL of Placement.
    """

    def __init__(self, accelerator: str, placement: str) -> None:
        self._accelerator = accelerator
        self._placement = placement
        self._http = requests.Session()
        self._http.trust_env = False
        self._http.headers.update({"X-Auth-Token": "admin", "OpenStack-API-Version": "accelerator 2.5"})

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """One request to the accelerator API that must succeed; its answer, if it has one."""
        return self._ask(method, self._accelerator + path, body)

    def device(self, address: str) -> Any:
        """The device at *address*, or None."""
        found = self.ask("GET", "/v2/devices")["devices"]
        return next((one for one in found if f'"{address}"' in one["std_board_info"]), None)

    def state(self, address: str) -> str | None:
        """Its device_state; fails if Placement offers it and it is not clean."""
        offered = self.offered(address)  # first: what is offered now must be available at any time after, unless bound
        device = self.device(address)
        state = device and device["device_state"]
        assert not offered or state == "available", f"Placement offers {address}, which is {state}"
        return str(state) if state else None

    def deployable(self, address: str) -> Any:
        """The deployable of the device at *address*, or None."""
        found = self.ask("GET", "/v2/deployables")["deployables"]
        return next((one for one in found if one["name"].lower().endswith(address)), None)

    def reserved(self, address: str) -> int:
        """What is reserved of its inventory."""
        [inventory] = self._inventories(address).values()
        return int(inventory["reserved"])

    def offered(self, address: str) -> bool:
        """Whether Placement would give it to somebody."""
        for name, inventory in self._inventories(address).items():
            usages = self._ask("GET", f"{self._provider(address)}/usages")["usages"]
            return bool(inventory["total"] - inventory["reserved"] - usages[name] > 0)
        return False

    def request(self, address: str, instance: str) -> Any:
        """Claim it for *instance*, and make an ARQ; the body of the PATCH that binds it."""
        deployable = self.deployable(address)
        [resource_class] = self._inventories(address)
        self._ask(
            "PUT",
            f"{self._placement}/allocations/{instance}",
            {
                "allocations": {deployable["rp_uuid"]: {"resources": {resource_class: 1}}},
                "consumer_generation": None,
                "consumer_type": "INSTANCE",
                "project_id": "demo",
                "user_id": "demo",
            },
        )
        group = {f"resources:{resource_class}": "1"}
        profile = f"profile-of-{instance}"
        self.ask("POST", "/v2/device_profiles", [{"name": profile, "groups": [group]}])
        [arq] = self.ask("POST", "/v2/accelerator_requests", {"device_profile_name": profile})["arqs"]
        told = {
            "hostname": self.device(address)["hostname"],
            "device_rp_uuid": deployable["rp_uuid"],
            "instance_uuid": instance,
        }
        return {arq["uuid"]: [{"path": f"/{name}", "op": "add", "value": value} for name, value in told.items()]}

    def bind(self, address: str, instance: str) -> None:
        """Claim it for *instance*, and bind it; returns when it is bound."""
        patch = self.request(address, instance)
        [arq] = patch
        self.ask("PATCH", "/v2/accelerator_requests", patch)
        wait_until(f"{address} is bound", lambda: self.arq_state(arq) == "Bound")

    def unbind(self, instance: str) -> None:
        """Delete the ARQs of *instance*, then what it has claimed: Nova's order."""
        self.ask("DELETE", f"/v2/accelerator_requests?instance={instance}")
        self._ask("DELETE", f"{self._placement}/allocations/{instance}")

    def clean(self, address: str) -> None:
        """The operator asks for it to be cleaned again."""
        self.ask("POST", f"/v2/devices/{self.device(address)['uuid']}/clean")

    def arq_state(self, uuid: str) -> str:
        """The state of an ARQ."""
        return str(self.ask("GET", f"/v2/accelerator_requests/{uuid}")["state"])

    def _provider(self, address: str) -> str:
        return f"{self._placement}/resource_providers/{self.deployable(address)['rp_uuid']}"

    def _inventories(self, address: str) -> Any:
        if self.deployable(address) is None:
            return {}
        return self._ask("GET", f"{self._provider(address)}/inventories")["inventories"]

    def _ask(self, method: str, url: str, body: Any = None) -> Any:
        headers = {"OpenStack-API-Version": "placement 1.39"} if url.startswith(self._placement) else {}
        answer = self._http.request(method, url, json=body, headers=headers, timeout=PATIENCE)
        assert answer.ok, f"{method} {url}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None
