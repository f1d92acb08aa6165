"""Autoclave as an operator runs it, and the real OpenStack clients that talk to it."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from functools import cached_property
from pathlib import Path
from typing import Any

BIN = Path(sys.prefix, "bin")
DATA_DIR = Path("/run/autoclave")
ENDPOINT = "127.0.0.1:6666"


class Service:
    """``autoclave up`` in the background.

    :param config: its configuration file.
    :param log: the file that gets what it says.
    """

    def __init__(self, config: Path, log: Path) -> None:
        command = [BIN / "autoclave", "up", "--data-dir", DATA_DIR, "--config-file", config, "--bind", ENDPOINT]
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def healthy(self) -> bool:
        """Whether it answers /healthcheck with 200."""
        try:
            with urllib.request.urlopen(f"http://{ENDPOINT}/healthcheck", timeout=10) as answer:
                return answer.status == 200
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def stop(self, seconds: float) -> int:
        """Ask it to end, as systemd does, and return its exit code.

        :raises subprocess.TimeoutExpired: it does not.
        """
        self._process.terminate()
        return self._process.wait(seconds)

    def kill(self) -> None:
        """End it by force."""
        self._process.kill()
        self._process.wait()


class Cloud:
    """The clients, told by the clouds.yaml that ``autoclave up`` wrote."""

    def __init__(self) -> None:
        os.environ["OS_CLIENT_CONFIG_FILE"] = str(DATA_DIR / "clouds.yaml")
        os.environ["OS_CLOUD"] = "autoclave"

    def openstack(self, *arguments: str) -> Any:
        """Run the ``openstack`` command, show it, and return its answer.

        :raises SystemExit: it failed.
        """
        print("$ openstack", *arguments, flush=True)
        done = subprocess.run([BIN / "openstack", *arguments, "-f", "json"], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"FAIL openstack {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return json.loads(done.stdout)

    def state(self, uuid: str) -> str:
        """The device's state, which microversion 2.5 shows and the command does not ask for.

        An `openstack` command takes long in the lab: what is looked at repeatedly is asked through openstacksdk.
        """
        return self._get(f"/devices/{uuid}", microversion="2.5")["device_state"]

    def operator(self, path: str) -> dict[str, Any]:
        """What the operator's API says, such as ``devices/<uuid>/history``."""
        return self._get(f"http://{ENDPOINT}/autoclave/v1/{path}")

    def bind(self, request: str, **values: str) -> None:
        """Bind an accelerator request, as Nova does. `openstack accelerator arq bind` would ask Compute for the
        server first, and there is none in the lab."""
        patch = [{"op": "add", "path": f"/{field}", "value": value} for field, value in values.items()]
        print(f"$ PATCH accelerator_requests/{request} {patch}", flush=True)
        self._sdk.accelerator.update_accelerator_request(request, patch)

    def request(self, uuid: str) -> dict[str, Any]:
        """One accelerator request."""
        return self._sdk.accelerator.get_accelerator_request(uuid).to_dict()

    def _get(self, url: str, **options: Any) -> dict[str, Any]:
        answer = self._sdk.accelerator.get(url, **options)
        answer.raise_for_status()
        return answer.json()

    @cached_property
    def _sdk(self) -> Any:
        import openstack  # seconds in the lab, which pass while the service starts

        return openstack.connect()
