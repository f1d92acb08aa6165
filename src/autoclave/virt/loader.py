"""The driver that ``[compute] virt_driver`` names."""

from pathlib import Path

from oslo_config import cfg

from autoclave.exceptions import InvalidConfiguration
from autoclave.simulator.host import SimulatedHost
from autoclave.virt.disks import InstanceFiles
from autoclave.virt.driver import ComputeDriver
from autoclave.virt.null import NullDriver

_OPTION = "[compute] virt_driver"


def load_compute_driver(conf: cfg.ConfigOpts) -> ComputeDriver:
    """What runs the guests of the host that *conf* is for.

    :raises InvalidConfiguration: it is not for this host, or libvirt-python is not installed.
    """
    instances = InstanceFiles(Path(conf.agent.data_dir))
    host = SimulatedHost.of_nodes(Path(conf.agent.dev_root))
    if conf.compute.virt_driver == "null":
        if host is None:
            raise InvalidConfiguration("null is for simulated hosts: on this one it would run no guest", option=_OPTION)
        return NullDriver(conf, host, instances)
    if host is not None and not conf.compute.libvirt_uri.startswith("test:"):
        # The addresses of the simulated host's functions are those of other devices in this machine.
        raise InvalidConfiguration("libvirt cannot run guests on a simulated host; set it to null", option=_OPTION)
    # Imported only here: libvirt-python is an extra.
    from autoclave.virt.libvirt import LibvirtDriver

    return LibvirtDriver(conf, instances)
