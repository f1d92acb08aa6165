"""The real ``openstack`` command."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# openstackclient prefers its own commands to those of python-cyborgclient, which older ones have: whoever is asked for
# is all that this one sees.
SHELL = """
import contextlib, importlib.metadata as metadata, io, json, sys
points = [point for package in metadata.distributions() for point in package.entry_points]
commands = "openstack.accelerator.v2"
shown = metadata.EntryPoints(
    point for point in points if point.group != commands or point.value.startswith(sys.argv[1])
)
metadata.entry_points = lambda **asked: shown.select(**asked) if asked else shown
from openstackclient import shell
shell.IGNORED_MODULES = ()
for line in sys.stdin:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = shell.main(json.loads(line))
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""


PATHS = {
    "accelerator": "accelerator/v2",
    "identity": "identity/v3",
    "compute": "compute/v2.1",
    "image": "image/v2",
}


class OpenStack:
    """``openstack …`` as an operator's shell runs it, in one process.

    :param package: whose commands for accelerators; two packages that have them are installed.
    :param auth: what ``clouds.yaml`` says of who asks; an administrator's token if nothing.
    :param words: what each command begins with.
    :param paths: where the services are, by what ``clouds.yaml`` calls them, if elsewhere than in ours.
    """

    def __init__(
        self,
        url: str,
        directory: Path,
        package: str,
        auth: Mapping[str, Any] | None = None,
        *,
        words: tuple[str, ...] = ("accelerator",),
        paths: Mapping[str, str] = PATHS,
    ) -> None:
        self.package = package
        self._words = words
        cloud = {
            **(auth or {"auth_type": "admin_token", "auth": {"endpoint": f"{url}/placement", "token": "secret"}}),
            "accelerator_default_microversion": "2.5",
            **{f"{service}_endpoint_override": f"{url}/{path}" for service, path in paths.items()},
        }
        file = directory / "clouds.yaml"
        file.write_text(json.dumps({"clouds": {"autoclave": cloud}}))
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "OS_CLIENT_CONFIG_FILE": str(file),
            "OS_CLOUD": "autoclave",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", SHELL, package],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def try_(self, *words: str) -> tuple[int, str, str]:
        """Exit code, output and errors of one command."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([*self._words, *words]) + "\n")
        self._process.stdin.flush()
        code, out, err = json.loads(self._process.stdout.readline())
        return code, out, err

    def __call__(self, *words: str) -> str:
        code, out, err = self.try_(*words)
        assert code == 0, err
        return out

    def read(self, *words: str) -> Any:
        return json.loads(self(*words, "-f", "json"))

    def close(self) -> None:
        self._process.communicate()
