"""Keep the data directory of ``autoclave up``: one process at a time uses it, and ``clouds.yaml`` tells clients.

OpenStack's clients and our own commands read ``clouds.yaml``.
"""

import fcntl
import os
import shlex
from pathlib import Path

import yaml

from autoclave.exceptions import InvalidConfiguration
from autoclave.simulator import files

CLOUD = "autoclave"
"""Its name in the file: what ``OS_CLOUD`` has to be."""

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
    """That of one data directory. It is written at each start, and says where the last one listened.

    :param data_dir: the directory of ``autoclave up``.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.path = data_dir / "clouds.yaml"

    def write(self, url: str, *, compute: bool) -> None:
        """Say that *url* is listened on.

        :param compute: whether the compute and the image APIs are served.
        """
        text = _BASE + (_COMPUTE if compute else "")
        files.write_text(self.path, text.format(cloud=CLOUD, url=url))

    @property
    def url(self) -> str:
        """Where it listens.

        :raises InvalidConfiguration: nothing says so.
        """
        return self._endpoint("accelerator").removesuffix("/accelerator/v2")

    @property
    def placement(self) -> str:
        """The URL of its Placement.

        :raises InvalidConfiguration: nothing says so.
        """
        return self._endpoint("placement")

    @property
    def exports(self) -> str:
        """What a shell is told, so that ``openstack`` and ``autoclave`` find it."""
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
                f"{self.path}, which says where the `autoclave up` of this directory listens, cannot be read "
                f"({error.strerror}): wait until that has started, or name another directory"
            ) from error
        try:
            return str(yaml.safe_load(text)["clouds"][CLOUD][f"{service}_endpoint_override"])
        except (yaml.YAMLError, LookupError, TypeError):
            raise InvalidConfiguration(
                f"{self.path} does not say where {service} is; restart `autoclave up`, which writes it anew"
            ) from None


_OPTION = "[agent] data_dir"
_REAL, _SIMULATED = "the real host", "simulated hosts"


class DataDirectory:
    """Used by one process at a time, and for the real host or for simulated ones: for ever.

    A drive of a simulated host has a row and a provider as a real one has; where both are, neither the
    database nor Placement tells them apart.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def take(self, *, simulated: bool) -> None:
        """Make it if there is none, and keep all others out until :meth:`give_back`.

        :raises InvalidConfiguration: it cannot be used, another process uses it, or it is for hosts of the other kind.
        """
        path = self.path / "up.lock"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InvalidConfiguration(
                f"{self.path} cannot be used ({error.strerror}); name another with --data-dir", option=_OPTION
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidConfiguration(
                f"{self.path} is used by another `autoclave up` (it holds {path}); stop that one, or name another "
                "directory with --data-dir",
                option=_OPTION,
            ) from None
        self._claim(self._lock, _SIMULATED if simulated else _REAL)

    def take_as_it_is(self) -> bool:
        """Keep all others out until :meth:`give_back`, whatever it is for; whether it could be had.

        :raises InvalidConfiguration: it is no data directory, or cannot be used.
        """
        try:
            self._lock = os.open(self.path / "up.lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidConfiguration(
                f"{self.path} cannot be used as the data directory of an `autoclave up` ({error.strerror}); name that "
                "with --data-dir, or the services' database and Placement with --config-file",
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
        """Let others have it."""
        if self._lock is not None:
            # Closing alone would leave it to a child that was forked meanwhile, until that executes its program.
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
        """Directories of versions before there was a note in the lock."""
        if (self.path / "sim").exists():
            return _SIMULATED
        return _REAL if (self.path / "placement.db").exists() else None
