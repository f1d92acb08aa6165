"""The machine id and the product UUID of a host."""

from collections.abc import Callable

from oslo_log import log as logging

from autoclave.exceptions import HardwareError
from autoclave.hardware import attribute
from autoclave.hardware.host import HostPaths
from autoclave.rules.host_setup import HostHints, hint

LOG = logging.getLogger(__name__)


def read_hints(paths: HostPaths) -> HostHints:
    """Return what the host says. What is not there, or cannot be read, is not known."""
    return HostHints(_unless_unreadable(machine_id, paths), _unless_unreadable(product_uuid, paths))


def machine_id(paths: HostPaths) -> str | None:
    """Return the machine id of the operating system, or None if that has none.

    :raises HardwareError: it cannot be read.
    """
    return hint(attribute.read_if_there(paths.etc / "machine-id") or "")


def product_uuid(paths: HostPaths) -> str | None:
    """Return the product UUID of the firmware, or None if that has none.

    :raises HardwareError: it cannot be read.
    """
    if paths.helper is not None:
        return paths.helper.product_uuid()
    return hint(attribute.read_if_there(paths.sysfs / "class/dmi/id/product_uuid") or "")


def _unless_unreadable(read: Callable[[HostPaths], str | None], paths: HostPaths) -> str | None:
    try:
        return read(paths)
    except HardwareError as error:
        LOG.info("A renamed host is not recognized by it: %s", error)
        return None
