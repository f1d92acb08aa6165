"""Which host an agent serves, and where its kernel interfaces are."""

import socket
from pathlib import Path

from oslo_config import cfg

from autoclave.hardware.host import HostPaths


def host_paths(conf: cfg.ConfigOpts) -> HostPaths:
    """The roots that ``[agent]`` names."""
    agent = conf.agent
    return HostPaths(
        sysfs=Path(agent.sysfs_root),
        dev=Path(agent.dev_root),
        proc=Path(agent.proc_root),
        tools=tuple(Path(directory) for directory in agent.tools_path),
    )


def host_name(conf: cfg.ConfigOpts) -> str:
    """The host's name everywhere: ``[agent] resource_provider_name``, or the fully qualified domain name."""
    return str(conf.agent.resource_provider_name or socket.getfqdn())
