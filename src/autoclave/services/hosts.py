"""Return the host that an agent serves, and the paths of its kernel interfaces."""

import os
import re
import socket
from pathlib import Path

from oslo_config import cfg

from autoclave.conf import agent
from autoclave.exceptions import InvalidConfiguration
from autoclave.hardware.host import Helper, HostPaths
from autoclave.simulator.host import SimulatedHost

_CAP_SYS_ADMIN = 21


def host_paths(conf: cfg.ConfigOpts) -> HostPaths:
    """Return the paths that ``[agent]`` names; start the helper of a real host if needed.

    :raises InvalidConfiguration: this user lacks the privileges and there is no helper, or the helper cannot be
        started.
    """
    agent = conf.agent
    dev = Path(agent.dev_root)
    simulated = SimulatedHost.of_nodes(dev)
    return HostPaths(
        sysfs=Path(agent.sysfs_root),
        dev=dev,
        proc=Path(agent.proc_root),
        etc=Path(agent.etc_root),
        tools=tuple(Path(directory) for directory in agent.tools_path),
        hold_disk=None if simulated is None else simulated.paths.hold_disk,
        answer_tool=None if simulated is None else simulated.paths.answer_tool,
        write_attribute=None if simulated is None else simulated.paths.write_attribute,
        helper=_helper(conf),
    )


def _helper(conf: cfg.ConfigOpts) -> Helper | None:
    """Return the helper for what needs root; None if this process may do it. A simulated host needs none."""
    if Path(conf.agent.dev_root) != HostPaths.dev:
        return None
    command: str = conf.autoclave_privileged.helper_command
    if command:
        # Imported only here: the import is slow, and most commands do not need it.
        from autoclave.hardware.privileged import client

        return client.start(command)
    if not _has_capability(_CAP_SYS_ADMIN):
        raise InvalidConfiguration(
            f"is not set, and user {os.geteuid()} may not send commands to NVMe drives; set a command that starts "
            "the helper as root, such as: sudo -n /opt/autoclave/bin/autoclave-privileged",
            option=f"[{agent.PRIVILEGED}] helper_command",
        )
    return None


_LONGEST_NAME = 180
"""Limit a host name: a provider name has 200 characters, and a device's is the host name with its address."""
_HOST_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{_LONGEST_NAME - 1}}}")


NO_HOST_NAME = f"is not a host name: use at most {_LONGEST_NAME} letters, digits, '.', '-' and '_'"
"""End the error about an invalid name."""


def _has_capability(number: int) -> bool:
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> number & 1)


def host_name(conf: cfg.ConfigOpts) -> str:
    """Return the host's name: ``[agent] resource_provider_name``, or the fully qualified domain name.

    :raises InvalidConfiguration: it is no valid host name.
    """
    name = str(conf.agent.resource_provider_name or socket.getfqdn())
    if not is_host_name(name):
        raise InvalidConfiguration(f"{name!r:.60} {NO_HOST_NAME}", option="[agent] resource_provider_name")
    return name


def is_host_name(name: str) -> bool:
    """Return whether *name* can be a host's name everywhere."""
    return _HOST_NAME.fullmatch(name) is not None
