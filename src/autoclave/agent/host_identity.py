"""Recognize a host whose name has changed.

The data directory records the name of the host that is served from it. In addition, the machine id and the product UUID
identify a machine, before its agent serves it under another name.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from oslo_log import log as logging

from autoclave.db import agents
from autoclave.db.agents import AgentRecord
from autoclave.exceptions import InvalidConfiguration
from autoclave.lifecycle.ports import Ports
from autoclave.rules.host_setup import HostHints, former_name

LOG = logging.getLogger(__name__)


_OPTION = "[agent] data_dir"


class HostRecord:
    """Record the name under which a host was first served from a data directory.

    The path of the kernel interfaces identifies the machine; each simulated host of ``autoclave up`` has its own.

    :param directory: ``[agent] data_dir``.
    :param sysfs: ``[agent] sysfs_root``.
    """

    def __init__(self, directory: Path, sysfs: Path) -> None:
        self._directory = directory
        self._path = directory / "hosts.json"
        self._root = str(sysfs.absolute())

    def require(self, host: str) -> None:
        """Refuse a start under another name, without writing anything.

        :raises InvalidConfiguration: the directory belongs to another host, or the record cannot be read.
        """
        names = self._read()
        if names is None:
            self._require_former(host)
        else:
            self._require_same(names, host)

    def write(self, host: str) -> None:
        """Record the name durably, if none is recorded.

        :raises InvalidConfiguration: the directory belongs to another host, or the record cannot be written.
        """
        with self._locked():
            names = self._read() or {}
            self._require_same(names, host)
            if names.get(self._root) != host:
                self._replace({**names, self._root: host})

    def require_served(self, *names_of_host: str) -> None:
        """Refuse to rename a host that was not served from this directory.

        :param names_of_host: its name, and the new name, which may be recorded already.
        :raises InvalidConfiguration: neither name is recorded, or the record cannot be read.
        """
        names = self._read()
        known = {*self._former()} if names is None else {names.get(self._root)}
        if known.isdisjoint(names_of_host):
            name = names_of_host[0]
            raise InvalidConfiguration(
                f"{self._directory} is not the data directory of host {name}; run the command on that host, with its "
                f"agent's --config-file. If the directory was lost, start the agent once as {name}",
                option=_OPTION,
            )

    def rename(self, hostname: str, new_hostname: str) -> None:
        """Record the new name durably.

        :raises InvalidConfiguration: see :meth:`require_served`; or the record cannot be written.
        """
        with self._locked():
            self.require_served(hostname, new_hostname)
            self._replace({**(self._read() or {}), self._root: new_hostname})

    def _require_same(self, names: Mapping[str, str], host: str) -> None:
        known = names.get(self._root, host)
        if known != host:
            raise _another(self._path, known, host)

    def _require_former(self, host: str) -> None:
        known = self._former()
        if known and host not in known:
            raise _another(self._directory / f"agent-{known[0]}.lock", " or ".join(known), host)

    def _former(self) -> list[str]:
        """Return the names from the lock files that a release without the record has left.

        An empty lock file belongs to a start that was refused.
        """
        locks = [path for path in self._directory.glob("agent-*.lock") if path.stat().st_size]
        return sorted(path.stem.removeprefix("agent-") for path in locks)

    def _read(self) -> dict[str, str] | None:
        try:
            names = json.loads(self._path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._unusable(str(error.strerror)) from error
        except ValueError as error:
            raise self._unusable(str(error)) from error
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise self._unusable("it is no JSON object of host names by their sysfs roots")
        return names

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude another agent that starts concurrently under another name."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            file = os.open(self._directory / "hosts.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unusable(str(error.strerror)) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)

    def _replace(self, names: Mapping[str, str]) -> None:
        fresh = self._path.with_suffix(".new")
        try:
            with open(fresh, "w", encoding="utf-8") as stream:
                json.dump(names, stream, indent=1, sort_keys=True)
                stream.write("\n")
                stream.flush()
                os.fsync(stream.fileno())
            fresh.replace(self._path)
            directory = os.open(self._directory, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise self._unusable(str(error.strerror)) from error

    def _unusable(self, why: str) -> InvalidConfiguration:
        return InvalidConfiguration(
            f"{self._path}, the record of which host this directory is for, cannot be used ({why}); see that the agent "
            "may read and write it, or restore it from a backup",
            option=_OPTION,
        )


def _another(path: Path, known: str, host: str) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"{path} says that this data directory is for host {known}, and the agent starts as host {host}. Under another "
        f"name its burned, held and dirty devices would be unknown. Start it as {known} (set [agent] "
        "resource_provider_name; the default is the fully qualified domain name, which DNS may change). If it has a "
        f"new name, run `autoclave host rename {known} {host}`. If this is another machine, name another data "
        "directory",
        option=_OPTION,
    )


_LONGEST_PAUSE = 1.0
"""Maximum seconds between two checks of whether another agent is alive."""


class FormerHost:
    """Detect that this machine is on record as a host of another name.

    :param patience: silence after which an agent counts as dead.
    """

    def __init__(self, ports: Ports, host: str, hints: HostHints, patience: timedelta) -> None:
        self._ports = ports
        self._host = host
        self._hints = hints
        self._patience = patience

    def require_none(self) -> None:
        """Refuse a start on a machine that is on record under another name.

        A live agent under that name belongs to another machine, a clone of this one. If it was seen recently, wait for
        its next report, at most until it counts as dead.

        :raises InvalidConfiguration: both hints match a host whose agent is dead.
        :raises DatabaseUnavailable: the database cannot be read.
        """
        former = self._find()
        if former is None:
            return
        end = self._ports.clock() + self._patience
        if self._may_live(former):
            LOG.warning(
                "Agent %s: this machine has the machine id and the product UUID of host %s, whose agent was seen a "
                "moment ago. Waiting until it is seen again, or counts as dead.",
                self._host,
                former.hostname,
            )
        while self._may_live(former) and self._ports.clock() < end:
            time.sleep(min(_LONGEST_PAUSE, self._patience.total_seconds() / 10))
            again = self._find()
            if again is None or (again.hostname, again.last_seen) != (former.hostname, former.last_seen):
                return
        raise InvalidConfiguration(
            f"this machine has the machine id and the product UUID of host {former.hostname}, whose agent is not "
            f"alive, so it seems to be that host, and the agent starts as {self._host}. Under another name its burned, "
            f"held and dirty devices would be unknown. Start it as {former.hostname}; if it has a new name, run "
            f"`autoclave host rename {former.hostname} {self._host}`; if it is another machine, give it a machine id "
            "of its own with systemd-machine-id-setup",
            option="[agent] resource_provider_name",
        )

    def _find(self) -> AgentRecord | None:
        with self._ports.db.read() as tx:
            known = {each.hostname: each for each in agents.list_all(tx)}
        hints = {name: HostHints(each.machine_id, each.product_uuid) for name, each in known.items()}
        name = former_name(self._host, self._hints, hints)
        return None if name is None else known[name]

    def _may_live(self, former: AgentRecord) -> bool:
        return self._ports.clock() - former.last_seen < self._patience
