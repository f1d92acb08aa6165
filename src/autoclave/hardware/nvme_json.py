"""Parse the JSON of nvme-cli in every dialect from 1.16 to 3.x.

The types of fields vary between versions. A 128-bit number is a float in 1.16, a string in 2.3 and an integer since
2.4. A 32-bit number above 2³¹ is negative before 2.4. Fields have the names of the NVMe Base Specification.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoclave.rules.cleanup_policy import Capabilities
from autoclave.rules.plain_text import drive_text, excerpt

NOT_REPORTED = 0xFFFFFFFF
"""The value of a time estimate in the sanitize log that the controller does not report."""

SPROG_WHOLE = 65536
"""The unit of SPROG is this fraction; 65535 means that no operation is running."""

SPROG_AT_REST = 65535

_SANICAP_CRYPTO, _SANICAP_BLOCK = 1 << 0, 1 << 1
_ONCS_WRITE_ZEROES = 1 << 3
_OACS_FORMAT_NVM, _OACS_NAMESPACE_MANAGEMENT = 1 << 1, 1 << 3
_CTRATT_NAMESPACE_GRANULARITY = 1 << 7
_DECODED_BYTE = re.compile(r"(?<!\\)((?:\\\\)*)\\x(?=[0-9a-f]{2})")
_FNA_FORMAT_ALL, _FNA_ERASE_ALL, _FNA_CRYPTO, _FNA_NO_BROADCAST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_NSATTR_WRITE_PROTECTED = 1 << 0
_FLBAS_EXTENDED = 1 << 4
_LEADING_NUMBER = re.compile(r"\((\d{1,3})\)", re.ASCII)
_U64, _U128 = (1 << 64) - 1, (1 << 128) - 1


class Unintelligible(ValueError):
    """Report JSON that does not match the known output of the command. ``str()`` returns the reason."""


@dataclass(frozen=True)
class ControllerIdentity:
    """Hold the fields of Identify Controller (CNS 01h) that erasing needs.

    :param cntlid: the controller's id in its subsystem, to which a namespace is attached.
    :param tnvmcap: total bytes of NVM; 0 if the controller does not report it.
    :param unvmcap: bytes of NVM in no namespace; 0 if the controller does not report it.
    :param nn: the highest namespace id; 0 if the tool does not show it.
    :param ctratt: controller attributes (CTRATT); 0 if not reported.
    """

    serial: str
    model: str
    firmware: str
    cntlid: int
    tnvmcap: int
    unvmcap: int
    sanicap: int
    oncs: int
    oacs: int
    nn: int = 0
    ctratt: int = 0
    fna: int = 0

    @property
    def reports_granularity(self) -> bool:
        """Return whether the controller has a Namespace Granularity List (CTRATT bit 7)."""
        return bool(self.ctratt & _CTRATT_NAMESPACE_GRANULARITY)

    @property
    def formats_all(self) -> bool:
        """Return whether a format of any namespace formats all of them (FNA bit 0)."""
        return bool(self.fna & _FNA_FORMAT_ALL)

    @property
    def erases_all(self) -> bool:
        """Return whether a format with secure erase reaches all namespaces (FNA bits 0 and 1)."""
        return bool(self.fna & (_FNA_FORMAT_ALL | _FNA_ERASE_ALL))

    @property
    def takes_broadcast(self) -> bool:
        """Return whether Format NVM accepts FFFFFFFFh for all namespaces (FNA bit 3 denies it)."""
        return not self.fna & _FNA_NO_BROADCAST

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            crypto_erase=bool(self.sanicap & _SANICAP_CRYPTO),
            block_erase=bool(self.sanicap & _SANICAP_BLOCK),
            write_zeroes=bool(self.oncs & _ONCS_WRITE_ZEROES),
            namespace_management=bool(self.oacs & _OACS_NAMESPACE_MANAGEMENT),
            format_nvm=bool(self.oacs & _OACS_FORMAT_NVM),
            format_crypto=bool(self.oacs & _OACS_FORMAT_NVM and self.fna & _FNA_CRYPTO),
        )


@dataclass(frozen=True)
class LBAFormat:
    """Describe one format that a namespace may have.

    :param metadata_bytes: metadata for each block (MS).
    :param block_bytes: size of a block; 0 if the format is not available.
    """

    metadata_bytes: int
    block_bytes: int


@dataclass(frozen=True)
class NamespaceIdentity:
    """Hold the fields of Identify Namespace (CNS 00h).

    :param nsze: size in logical blocks; 0 for an id that is not attached to this controller.
    :param ncap: logical blocks that may be allocated at a time.
    :param flbas: the byte that selects the current LBA format.
    :param dps: the byte that selects the protection information of the blocks.
    :param write_protected: the namespace currently refuses writes.
    """

    nsze: int
    ncap: int
    flbas: int
    formats: tuple[LBAFormat, ...]
    dps: int = 0
    write_protected: bool = False

    @property
    def active(self) -> bool:
        """Return whether the id is attached: for other ids, the query succeeds with all zeroes."""
        return self.nsze > 0

    @property
    def lba_bytes(self) -> int:
        """Return the bytes of a logical block in the current format; 0 for an id that is not attached."""
        return self.format.block_bytes

    @property
    def format(self) -> LBAFormat:
        """Return the current LBA format; one without blocks for an id that is not attached."""
        return self.formats[self.format_index] if self.format_index < len(self.formats) else LBAFormat(0, 0)

    @property
    def format_index(self) -> int:
        """Return the index of the current LBA format. Since NVMe 2.0, bits 6:5 of FLBAS extend it beyond 16 formats."""
        return (self.flbas & 0xF) | (self.flbas >> 5 & 0x3) << 4

    @property
    def size_bytes(self) -> int:
        """Return its size; 0 for an id that is not attached."""
        return self.nsze * self.lba_bytes

    @property
    def extended(self) -> bool:
        """Return whether metadata follows the data of each block in the same buffer (FLBAS bit 4)."""
        return bool(self.flbas & _FLBAS_EXTENDED)


@dataclass(frozen=True)
class SanitizeLog:
    """Hold the Sanitize Status log page (81h).

    :param status: SSTAT bits 2:0: 0 never sanitized, 1 succeeded, 2 in progress, 3 failed, 4 succeeded without
        deallocation.
    :param words: the status in the tool's text.
    :param progress: SPROG, in 1/65536; 65535 if no operation is running.
    :param global_data_erased: nothing was written since the last successful sanitize.
    :param cdw10: dword 10 of the command that started the operation; None if the tool does not show it.
    :param state: the sanitize state in the tool's text; None if the tool does not show it.
    :param estimates: seconds by kind of operation, None if not reported.
    """

    status: int
    words: str
    progress: int
    global_data_erased: bool
    cdw10: int | None
    estimates: Mapping[str, int | None]
    state: str | None = None

    @property
    def in_progress(self) -> bool:
        return self.status == 2

    @property
    def verifying(self) -> bool:
        """Return whether the operation is in Media Verification, where it stays until the host ends it."""
        return self.in_progress and self.state is not None and "media verification" in self.state.lower()

    @property
    def may_be_verifying(self) -> bool:
        """Return whether Media Verification is possible: the log shows neither progress nor the sanitize state."""
        return self.in_progress and self.state is None and self.progress == SPROG_AT_REST

    @property
    def succeeded(self) -> bool:
        return self.status in (1, 4)

    @property
    def action(self) -> int | None:
        """Return SANACT of the operation: 1 exit failure mode, 2 block erase, 3 overwrite, 4 crypto erase."""
        return None if self.cdw10 is None else self.cdw10 & 0x7

    @property
    def percent(self) -> float:
        return min(100.0, 100.0 * self.progress / SPROG_WHOLE)


def parse(text: str) -> object:
    r"""Parse the JSON that the tool printed, whatever bytes a drive has in its strings.

    1.16 prints control characters unescaped. Every version prints bytes that are not UTF-8 unescaped; decoding has
    turned them into ``\xNN``, which is not valid JSON.

    :raises ValueError: it is not JSON.
    """
    return json.loads(_DECODED_BYTE.sub(r"\1\\\\x", text), strict=False)


def controller_identity(data: object) -> ControllerIdentity:
    """Parse the output of ``nvme id-ctrl -o json``.

    :raises Unintelligible: it is not such output.
    """
    fields = _object(data)
    return ControllerIdentity(
        serial=drive_text(_text(fields, "sn")),
        model=drive_text(_text(fields, "mn")),
        firmware=drive_text(_text(fields, "fr")),
        cntlid=_number(fields, "cntlid"),
        tnvmcap=_number(fields, "tnvmcap", _U128),
        unvmcap=_number(fields, "unvmcap", _U128),
        sanicap=_u32(fields, "sanicap"),
        oncs=_number(fields, "oncs"),
        oacs=_number(fields, "oacs"),
        nn=_u32(fields, "nn") if "nn" in fields else 0,
        ctratt=_u32(fields, "ctratt") if "ctratt" in fields else 0,
        fna=_number(fields, "fna"),
    )


def namespace_identity(data: object) -> NamespaceIdentity:
    """Parse the output of ``nvme id-ns -o json``.

    :raises Unintelligible: it is not such output.
    """
    fields = _object(data)
    namespace = NamespaceIdentity(
        nsze=_number(fields, "nsze"),
        ncap=_number(fields, "ncap"),
        flbas=_number(fields, "flbas"),
        formats=tuple(_lba_format(_object(item)) for item in _list(fields, "lbafs")),
        dps=_number(fields, "dps"),
        write_protected=bool(_number(fields, "nsattr") & _NSATTR_WRITE_PROTECTED) if "nsattr" in fields else False,
    )
    if namespace.active and not namespace.lba_bytes:
        raise Unintelligible(
            f"flbas {namespace.flbas:#x} names LBA format {namespace.format_index}, which the namespace does not have"
        )
    return namespace


def _lba_format(fields: Mapping[str, Any]) -> LBAFormat:
    exponent = _number(fields, "ds")
    if exponent > 32:
        raise Unintelligible(f"an LBA format has blocks of 2^{exponent} bytes")
    return LBAFormat(metadata_bytes=_number(fields, "ms"), block_bytes=1 << exponent if exponent else 0)


def granularities(data: object) -> list[int]:
    """Parse the output of ``nvme id-ns-granularity -o json``: bytes by LBA format, or one value for all formats.

    :raises Unintelligible: it is not such output.
    """
    fields = _object(data)
    entries = [_object(item) for item in _list(fields, "namespace-granularity-list")]
    found = [
        max(_number(entry, "namespace-size-granularity"), _number(entry, "namespace-capacity-granularity"))
        for entry in entries
    ]
    # Attributes bit 0: one descriptor for each LBA format; otherwise the first one applies to all.
    return found if _number(fields, "attributes") & 1 else found[:1]


def namespace_ids(data: object) -> list[int]:
    """Parse the output of ``nvme list-ns -o json``.

    :raises Unintelligible: it is not such output.
    """
    return [_u32(_object(item), "nsid") for item in _list(_object(data), "nsid_list")]


def sanitize_log(data: object) -> SanitizeLog:
    """Parse the output of ``nvme sanitize-log -o json``.

    :raises Unintelligible: it is not such output.
    """
    root = _object(data)
    if len(root) != 1:
        raise Unintelligible(f"one device was expected, but the output has the keys {', '.join(root) or '(none)'}")
    # The key is the name of the device node, which may differ from the one that was given.
    fields = _object(next(iter(root.values())))
    status = _object(fields.get("sstat"))
    words = excerpt(_text(status, "status"))
    number = _LEADING_NUMBER.match(words)
    if number is None:
        raise Unintelligible(f"the sanitize status {words!r} does not begin with its number")
    return SanitizeLog(
        status=int(number[1]),
        words=words,
        progress=_number(fields, "sprog", most=SPROG_AT_REST),
        global_data_erased=bool(_number(status, "global_erased")),
        cdw10=_u32(fields, "cdw10_info") if "cdw10_info" in fields else None,
        estimates={
            key.removeprefix("time_"): None if (seconds := _u32(fields, key)) == NOT_REPORTED else seconds
            for key in fields
            if key.startswith("time_")
        },
        state=_sanitize_state(fields.get("sanitize_state_information")),
    )


def _sanitize_state(information: object) -> str | None:
    state = information.get("sanitize_state") if isinstance(information, dict) else None
    return excerpt(state) if isinstance(state, str) else None


def _object(data: object) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise Unintelligible(f"an object was expected, not {data!r:.60}")
    return data


def _list(fields: Mapping[str, Any], key: str) -> list[Any]:
    value = _field(fields, key)
    if not isinstance(value, list):
        raise Unintelligible(f"{key!r} is not a list: {value!r:.60}")
    return value


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = _field(fields, key)
    if not isinstance(value, str):
        raise Unintelligible(f"{key!r} is not a string: {value!r:.60}")
    return value


def _u32(fields: Mapping[str, Any], key: str) -> int:
    value = _field(fields, key)
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 31) <= value < 1 << 32:
        raise Unintelligible(f"{key!r} is not a 32-bit number: {excerpt(repr(value), 60)}")
    return value & 0xFFFFFFFF


def _number(fields: Mapping[str, Any], key: str, most: int = _U64) -> int:
    """Return a number from 0 to *most*: no field is wider than 128 bits, and most are narrower."""
    value = _field(fields, key)
    if isinstance(value, str) and re.fullmatch(r"\d{1,39}", value, re.ASCII):
        value = int(value)
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise Unintelligible(f"{key!r} is not a number from 0 to {most}: {excerpt(repr(value), 60)}")
    return value


def _field(fields: Mapping[str, Any], key: str) -> Any:
    if key not in fields:
        raise Unintelligible(f"the field {key!r} is missing")
    return fields[key]
