"""Who on this host uses the disks of a controller."""

from autoclave.hardware.host import HostPaths
from autoclave.hardware.nvme import Controller


def holders(paths: HostPaths, controller: Controller) -> list[str]:
    """Everything that uses the controller's disks, one line of words each; empty: nobody does.

    :raises HardwareError: something that would tell cannot be read.
    """
    raise NotImplementedError
