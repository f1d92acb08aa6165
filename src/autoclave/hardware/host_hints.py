"""The machine id and the product UUID of a host."""

from pathlib import Path

from oslo_log import log as logging

from autoclave.exceptions import HardwareError
from autoclave.hardware import attribute
from autoclave.hardware.host import HostPaths
from autoclave.rules.host_hints import HostHints, hint

LOG = logging.getLogger(__name__)


def read_hints(paths: HostPaths) -> HostHints:
    """Return what the host says. What is not there, or what only root may read, is not known."""
    return HostHints(_read(paths.etc / "machine-id"), _read(paths.sysfs / "class/dmi/id/product_uuid"))


def _read(path: Path) -> str | None:
    try:
        return hint(attribute.read_if_there(path) or "")
    except HardwareError as error:
        LOG.info("A renamed host is not recognized by it: %s", error)
        return None
