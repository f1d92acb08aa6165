"""Read flavors and images: resources, traits, and the hardware of the guest.

Images use the property names of Nova and Glance (``hw_…``, ``os_…``). Traits follow the image-traits specification.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from autoclave.exceptions import BadRequest

_MIB_PER_GIB = 1024


@dataclass(frozen=True)
class Flavor:
    """Hold a flavor as it was when the instance was requested.

    :param ram: MiB.
    :param disk: GiB of the root disk.
    :param ephemeral: GiB in addition to the root disk.
    :param swap: MiB.
    """

    name: str
    vcpus: int
    ram: int
    disk: int
    ephemeral: int
    swap: int
    extra_specs: Mapping[str, str]

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Any]) -> "Flavor":
        """Read the flavor from the snapshot in an instance."""
        return cls(**{field.name: snapshot[field.name] for field in fields(cls)})

    def resources(self) -> dict[str, int]:
        """Return the amounts by resource class, including zero amounts. Swap is rounded up to whole GiB."""
        swap = -(-self.swap // _MIB_PER_GIB)
        return {"VCPU": self.vcpus, "MEMORY_MB": self.ram, "DISK_GB": self.disk + self.ephemeral + swap}


MACHINE = "q35"
"""The machine type of every guest. Its devices are on PCI Express."""

_FIRMWARE_TYPE, _MACHINE_TYPE, _SECURE_BOOT = "hw_firmware_type", "hw_machine_type", "os_secure_boot"
HEEDED = frozenset({_FIRMWARE_TYPE, _MACHINE_TYPE, _SECURE_BOOT})
"""The properties that are obeyed or refused."""


class Firmware(StrEnum):
    """List the values of ``hw_firmware_type``: the firmware that boots a guest."""

    BIOS = "bios"
    UEFI = "uefi"
    """Most graphics cards with much memory need UEFI: a BIOS has no room for their large BARs."""


class DiskFormat(StrEnum):
    """List the formats of a disk file. The format is always given explicitly, never detected from the guest's data."""

    RAW = "raw"
    QCOW2 = "qcow2"


def disk_format_of(name: str | None) -> DiskFormat:
    """Return the format of an image's file from *name*, its ``disk_format``.

    :raises BadRequest: guests do not support disks of this format.
    """
    try:
        return DiskFormat(name or "")
    except ValueError:
        raise BadRequest(f"The image's disk_format is {name}; guests have raw and qcow2 disks.") from None


def firmware_of(properties: Mapping[str, object]) -> Firmware:
    """Return the firmware that ``hw_firmware_type`` requests, or BIOS without it.

    :raises BadRequest: the image requests an unsupported firmware or machine (``hw_machine_type``), or requires secure
        boot. Its user would rely on a missing feature.
    """
    _one_of(properties, _MACHINE_TYPE, (MACHINE,))
    _one_of(properties, _SECURE_BOOT, ("disabled", "optional"))
    firmwares = tuple(each.value for each in Firmware)
    return Firmware(_one_of(properties, _FIRMWARE_TYPE, firmwares) or Firmware.BIOS)


def _one_of(properties: Mapping[str, object], key: str, values: tuple[str, ...]) -> str | None:
    value = properties.get(key)
    if value is None:
        return None
    if value not in values:
        choice = " or ".join(map(repr, values))
        raise BadRequest(f"Image property {key!r} is {value!r:.60}; guests here can have {choice}.")
    return str(value)


_GIB = 1 << 30


class Image(Protocol):
    """Describe the requirements of an image: ``min_ram`` in MiB, ``min_disk`` in GiB, ``size`` in bytes."""

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
    """Refuse an image that cannot start a guest of *flavor*.

    :param flavor: as an instance keeps it: ``name``, ``ram`` in MiB, ``disk`` in GiB.
    :raises BadRequest: the image needs more than the flavor has, or an unsupported disk format, firmware or machine.
    """
    name = flavor["name"]
    if image.min_ram > flavor["ram"]:
        raise BadRequest(
            f"Flavor {name} has {flavor['ram']} MiB of memory, and image {image.uuid} needs {image.min_ram}."
        )
    needed = max(image.min_disk, -(-(image.size or 0) // _GIB))
    if flavor["disk"] and needed > flavor["disk"]:  # without a disk in the flavor, the disk gets the size of the image
        raise BadRequest(f"Flavor {name} has a disk of {flavor['disk']} GiB, and image {image.uuid} needs {needed}.")
    disk_format_of(image.disk_format)
    firmware_of(image.properties)


_SUFFIX = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)
_NAME = re.compile(r"[A-Z0-9_]{1,255}", re.ASCII)


class Spec(NamedTuple):
    """Hold one parsed extra spec.

    :param suffix: the request group; empty for the unnumbered one.
    :param name: a resource class or a trait.
    """

    key: str
    suffix: str
    name: str
    value: str


def specs_of(kind: str, extra_specs: Mapping[str, str]) -> Iterator[Spec]:
    """Yield those of *extra_specs* whose key begins with *kind*, in the order of their keys.

    :param kind: ``resources`` or ``trait``.
    :raises BadRequest: such a key has another form than ``KIND[suffix]:NAME``.
    """
    for key in sorted(extra_specs):
        head, colon, name = key.partition(":")
        if not colon or not head.startswith(kind):
            continue
        suffix = head.removeprefix(kind)
        if suffix and not _SUFFIX.fullmatch(suffix):
            raise BadRequest(
                f"Flavor extra spec {key!r}: the suffix {suffix!r} is not 1 to 64 letters, digits, '_' and '-'."
            )
        if not is_name(name):
            raise BadRequest(f"Flavor extra spec {key!r}: {name!r} is not a name of capitals, digits and '_'.")
        yield Spec(key, suffix, name, extra_specs[key])


def is_name(text: str) -> bool:
    """Return whether *text* is a valid name of a resource class or a trait."""
    return _NAME.fullmatch(text) is not None


REQUIRED = "required"
FORBIDDEN = "forbidden"

_KIND = "trait"
_IMAGE_PREFIX = "trait:"


@dataclass(frozen=True)
class TraitDemand:
    """Hold the required and forbidden traits of one request group."""

    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ImageTraits:
    """Hold the traits that an image requires.

    :param ignored: the reason by key, for properties that resemble a required trait but are ignored.
    """

    required: frozenset[str]
    ignored: Mapping[str, str]


def flavor_traits(extra_specs: Mapping[str, str]) -> dict[str, TraitDemand]:
    """Return the traits of ``trait[suffix]:NAME=required|forbidden`` by suffix.

    :raises BadRequest: a key or value has another form.
    """
    found: dict[str, dict[str, set[str]]] = {}
    for spec in specs_of(_KIND, extra_specs):
        if spec.value not in (REQUIRED, FORBIDDEN):
            raise BadRequest(
                f"Flavor extra spec {spec.key!r} is {spec.value!r}; it must be {REQUIRED!r} or {FORBIDDEN!r}."
            )
        found.setdefault(spec.suffix, {REQUIRED: set(), FORBIDDEN: set()})[spec.value].add(spec.name)
    return {
        suffix: TraitDemand(frozenset(by_value[REQUIRED]), frozenset(by_value[FORBIDDEN]))
        for suffix, by_value in found.items()
    }


def image_traits(properties: Mapping[str, object]) -> ImageTraits:
    """Return the traits of ``trait:NAME=required``.

    As in Nova, all other properties are ignored, and none of them makes the image invalid.

    :raises BadRequest: a required trait has an invalid name.
    """
    required, ignored = set(), {}
    for key, value in sorted(properties.items()):
        if not key.startswith(_KIND):
            continue
        if not key.startswith(_IMAGE_PREFIX):
            if ":" in key:
                ignored[key] = "an image's traits go to the unnumbered group only: the key must begin with 'trait:'"
        elif value != REQUIRED:
            ignored[key] = f"it is {value!r}; only {REQUIRED!r}, written exactly so, is a demand"
        elif not is_name(name := key.removeprefix(_IMAGE_PREFIX)):
            raise BadRequest(f"Image property {key!r}: {name!r} is not a name of capitals, digits and '_'.")
        else:
            required.add(name)
    return ImageTraits(frozenset(required), ignored)


def forbidden_anywhere(extra_specs: Mapping[str, str]) -> dict[str, str]:
    """Return the traits that a flavor forbids in any of its groups, with their keys, for a rebuild."""
    return {spec.name: spec.key for spec in specs_of(_KIND, extra_specs) if spec.value == FORBIDDEN}
