"""Whether a flavor, and any guest, has what an image needs."""

from collections.abc import Mapping
from typing import Any, Protocol

from autoclave.exceptions import BadRequest
from autoclave.rules.image_hardware import disk_format_of, firmware_of

_GIB = 1 << 30


class Image(Protocol):
    """What an image needs: ``min_ram`` in MiB, ``min_disk`` in GiB, ``size`` in bytes."""

    @property
    def uuid(self) -> str: ...
    @property
    def min_ram(self) -> int: ...
    @property
    def min_disk(self) -> int: ...
    @property
    def size(self) -> int | None: ...
    @property
    def disk_format(self) -> str | None: ...
    @property
    def properties(self) -> Mapping[str, object]: ...


def require_fit(flavor: Mapping[str, Any], image: Image) -> None:
    """Refuse an image that no guest of *flavor* can be started from.

    :param flavor: as an instance keeps it: ``name``, ``ram`` in MiB, ``disk`` in GiB.
    :raises BadRequest: it needs more than the flavor has, or a disk or a machine that no guest has; says what.
    """
    name = flavor["name"]
    if image.min_ram > flavor["ram"]:
        raise BadRequest(
            f"Flavor {name} has {flavor['ram']} MiB of memory, and image {image.uuid} needs {image.min_ram}."
        )
    needed = max(image.min_disk, -(-(image.size or 0) // _GIB))
    if flavor["disk"] and needed > flavor["disk"]:  # a flavor without a disk has one of the image's size
        raise BadRequest(f"Flavor {name} has a disk of {flavor['disk']} GiB, and image {image.uuid} needs {needed}.")
    disk_format_of(image.disk_format)
    firmware_of(image.properties)
