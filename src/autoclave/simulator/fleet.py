"""The simulated hosts of one data directory, where ``autoclave up --simulate`` puts them."""

from pathlib import Path

from autoclave.exceptions import SimulatorError
from autoclave.simulator.drive_spec import default_drives
from autoclave.simulator.functions import default_functions
from autoclave.simulator.host import SimulatedHost


class Fleet:
    """Simulated hosts, each in ``<data directory>/sim/<name>``.

    :param data_dir: the data directory of the service they belong to.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir.absolute()
        self._directory = self._data_dir / "sim"

    def hosts(self) -> list[SimulatedHost]:
        """All of them, by name."""
        found = self._directory.glob("*/state/host.json")
        return [SimulatedHost.open(path.parent.parent) for path in sorted(found)]

    def require_hosts(self) -> list[SimulatedHost]:
        """All of them, by name.

        :raises SimulatorError: there are none.
        """
        hosts = self.hosts()
        if not hosts:
            raise SimulatorError(
                f"{self._data_dir} has no simulated hosts; name the directory of `autoclave up --simulate` with "
                "--data-dir, or AUTOCLAVE_DATA_DIR"
            )
        return hosts

    def host(self, name: str) -> SimulatedHost:
        """The host of that name.

        :raises SimulatorError: there is none.
        """
        hosts = self.require_hosts()
        for host in hosts:
            if host.root.name == name:
                return host
        known = ", ".join(host.root.name for host in hosts)
        raise SimulatorError(f"{self._data_dir} has no simulated host {name!r}; it has {known}")

    def ensure(self, name: str, index: int) -> SimulatedHost:
        """The host of that name, made with the default drives and cards if there is none yet.

        :param index: makes its serial numbers unique in the fleet.
        """
        root = self._directory / name
        if (root / "state" / "host.json").exists():
            return SimulatedHost.open(root)
        return SimulatedHost.create(root, name, default_drives(index), default_functions())
