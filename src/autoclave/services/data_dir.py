"""Lock the data directory of ``autoclave up`` for one process, and write its ``clouds.yaml``.

``clouds.yaml`` configures OpenStack's clients and our own commands.
"""

import fcntl
import os
import shlex
from pathlib import Path

import yaml

from autoclave.exceptions import InvalidConfiguration
from autoclave.simulator import files

CLOUD = "autoclave"
"""Name the cloud in the file: the value of ``OS_CLOUD``."""

_BASE = """\
clouds:
  {cloud}:
    auth_type: admin_token
    auth: {{endpoint: "{url}/placement", token: "admin"}}
    placement_endpoint_override: {url}/placement
    accelerator_endpoint_override: {url}/accelerator/v2
    identity_endpoint_override: {url}/identity/v3
    accelerator_default_microversion: "2.5"
"""
_COMPUTE = """\
    compute_endpoint_override: {url}/compute/v2.1
    image_endpoint_override: {url}/image/v2
"""


class CloudsFile:
    """Write and read the file of one data directory. Each start writes it, with the current address.

    :param data_dir: the directory of ``autoclave up``.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.path = data_dir / "clouds.yaml"

    def write(self, url: str, *, compute: bool) -> None:
        """Write that the service listens on *url*.

        :param compute: whether the compute and the image APIs are served.
        """
        text = _BASE + (_COMPUTE if compute else "")
        files.write_text(self.path, text.format(cloud=CLOUD, url=url))

    @property
    def url(self) -> str:
        """Return the URL of the service.

        :raises InvalidConfiguration: the file has none.
        """
        return self._endpoint("accelerator").removesuffix("/accelerator/v2")

    @property
    def placement(self) -> str:
        """Return the URL of its Placement.

        :raises InvalidConfiguration: the file has none.
        """
        return self._endpoint("placement")

    @property
    def exports(self) -> str:
        """Return the exports for a shell, so that ``openstack`` and ``autoclave`` find the service."""
        where = self._data_dir.absolute()
        return (
            f"export OS_CLIENT_CONFIG_FILE={shlex.quote(str(where / self.path.name))} OS_CLOUD={CLOUD}\n"
            f"export AUTOCLAVE_DATA_DIR={shlex.quote(str(where))}\n"
        )

    def _endpoint(self, service: str) -> str:
        try:
            text = self.path.read_text()
        except OSError as error:
            raise InvalidConfiguration(
                f"{self.path}, which contains the address of the `autoclave up` of this directory, cannot be read "
                f"({error.strerror}): wait until `autoclave up` has started, or name another directory"
            ) from error
        try:
            return str(yaml.safe_load(text)["clouds"][CLOUD][f"{service}_endpoint_override"])
        except (yaml.YAMLError, LookupError, TypeError):
            raise InvalidConfiguration(
                f"{self.path} lacks the endpoint of {service}; restart `autoclave up`, which writes the file again"
            ) from None


_OPTION = "[agent] data_dir"
_REAL, _SIMULATED = "the real host", "simulated hosts"


class DataDirectory:
    """Lock a directory for one process at a time, and for either the real host or simulated ones, permanently.

    A drive of a simulated host has a row and a provider like a real one. In one database, nothing distinguishes them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def take(self, *, simulated: bool) -> None:
        """Create the directory if needed, and lock it until :meth:`give_back`.

        :raises InvalidConfiguration: it cannot be used, another process uses it, or it is for hosts of the other
            kind.
        """
        path = self.path / "up.lock"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InvalidConfiguration(
                f"{self.path} cannot be used ({error.strerror}); name another directory with --data-dir", option=_OPTION
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidConfiguration(
                f"{self.path} is used by another `autoclave up` (it holds {path}); stop it, or name another "
                "directory with --data-dir",
                option=_OPTION,
            ) from None
        self._claim(self._lock, _SIMULATED if simulated else _REAL)

    def take_as_it_is(self) -> bool:
        """Lock the directory until :meth:`give_back`, for either kind of host; return whether the lock was free.

        :raises InvalidConfiguration: it is no data directory, or cannot be used.
        """
        try:
            self._lock = os.open(self.path / "up.lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidConfiguration(
                f"{self.path} cannot be used as the data directory of an `autoclave up` ({error.strerror}); name the "
                "right directory with --data-dir, or the services' configuration with --config-file",
                option=_OPTION,
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = None
            return False
        return True

    def give_back(self) -> None:
        """Unlock the directory."""
        if self._lock is not None:
            # Unlock explicitly: a child forked but not yet exec'd shares the descriptor.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = None

    def _claim(self, lock: int, wanted: str) -> None:
        known = os.pread(lock, 64, 0).decode(errors="replace").strip() or self._kind_without_a_note()
        if known not in (None, wanted):
            remedy = "start with --simulate" if known == _SIMULATED else "start without --simulate"
            raise InvalidConfiguration(
                f"{self.path} is for {known}, not for {wanted}; {remedy}, or name another directory with --data-dir",
                option=_OPTION,
            )
        os.pwrite(lock, f"{wanted}\n".encode(), 0)

    def _kind_without_a_note(self) -> str | None:
        """Recognize directories of versions before the lock had a note."""
        if (self.path / "sim").exists():
            return _SIMULATED
        return _REAL if (self.path / "placement.db").exists() else None
