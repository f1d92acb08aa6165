"""The commands of the stand-in for nvme-cli that talk to one drive."""

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autoclave.simulator import mishaps, nvme_identify, nvme_logs
from autoclave.simulator.device_nodes import DeviceNode
from autoclave.simulator.drive import Drive
from autoclave.simulator.drive_state import LBA_FORMATS
from autoclave.simulator.faults import FaultKind
from autoclave.simulator.nvme_dialect import Answer, Dialect
from autoclave.simulator.nvme_options import Options, UsageError
from autoclave.simulator.nvme_status import CommandFailed, Status
from autoclave.simulator.sanitize import Action
from autoclave.simulator.slots import DriveSlots

_EVERY_NAMESPACE = 0xFFFFFFFF
_IDS_PER_LIST = 1024
_ACTION_WORDS = {
    "exit-failure": Action.EXIT_FAILURE_MODE,
    "start-block-erase": Action.BLOCK_ERASE,
    "start-overwrite": Action.OVERWRITE,
    "start-crypto-erase": Action.CRYPTO_ERASE,
}
# What 3.x looks up itself before it bothers the drive.
_SANICAP_TEXT = {
    Action.CRYPTO_ERASE: (1 << 0, "crypto erase"),
    Action.BLOCK_ERASE: (1 << 1, "block erase"),
    Action.OVERWRITE: (1 << 2, "overwrite"),
}


class Refused(Exception):
    """nvme-cli or the kernel refuses before the drive is asked.

    :attr errno: the errno of the reason.
    """

    def __init__(self, message: str, number: int = errno.EINVAL) -> None:
        super().__init__(message)
        self.errno = number


@dataclass(frozen=True)
class Call:
    """One command on its way to a drive, which is locked meanwhile."""

    host: DriveSlots
    dialect: Dialect
    node: DeviceNode
    drive: Drive
    options: Options

    def nsid(self) -> int:
        """The namespace that is meant: the one given, or that of the block device."""
        nsid = self.options.number("namespace-id")
        if nsid is None:
            nsid = self.node.nsid
        if nsid is None:
            raise Refused("get-namespace-id: Inappropriate ioctl for device", errno.ENOTTY)
        return nsid

    def attached(self, nsid: int) -> bool:
        """Whether the namespace is attached to the controller that is asked."""
        namespace = self.drive.state.namespaces.get(nsid)
        return namespace is not None and self.node.slot.cntlid in namespace.attached


def _id_ctrl(call: Call) -> Answer:
    fields = nvme_identify.controller(call.dialect, call.node.slot, call.drive.state)
    return Answer(out=call.dialect.json(fields) if call.options.as_json else nvme_logs.fields_text(fields))


def _id_ns(call: Call) -> Answer:
    nsid = call.nsid()
    common = nsid == _EVERY_NAMESPACE
    if nsid == 0 or (common and not call.drive.state.manages_namespaces):
        raise CommandFailed(Status.INVALID_NAMESPACE)
    active = call.drive.state.namespaces[nsid] if call.attached(nsid) else None
    fields = nvme_identify.namespace(call.dialect, active, formats=common)
    return Answer(out=call.dialect.json(fields) if call.options.as_json else nvme_logs.fields_text(fields))


def _list_ns(call: Call) -> Answer:
    if FaultKind.LIST_NS_REFUSED in call.drive.faults:
        raise CommandFailed(Status.INVALID_FIELD)
    if "all" in call.options and not call.drive.state.manages_namespaces:
        raise CommandFailed(Status.INVALID_FIELD)
    start = call.options.number("namespace-id") or 1
    nsids = [n for n in sorted(call.drive.state.namespaces) if "all" in call.options or call.attached(n)]
    page = [nsid for nsid in nsids if nsid >= start][:_IDS_PER_LIST]
    return Answer(out=nvme_logs.namespace_list(call.dialect, page, as_json=call.options.as_json))


def _id_ns_granularity(call: Call) -> Answer:
    if not call.drive.state.reports_granularity:
        raise CommandFailed(Status.INVALID_FIELD)
    fields = nvme_identify.granularity(call.drive.state)
    return Answer(out=call.dialect.json(fields) if call.options.as_json else nvme_logs.fields_text(fields))


def _sanitize(call: Call) -> Answer:
    text = call.options.text("sanact")
    words = _ACTION_WORDS if call.dialect.version >= (2, 0) else {}
    code = int(words[text]) if text in words else call.options.number("sanact", 8)
    if not code or code > 7 or (code == Action.EXIT_MEDIA_VERIFICATION and call.dialect.version < (2, 11)):
        raise Refused("Invalid Sanitize Action")
    if call.dialect.version >= (3, 0) and code in tuple(_SANICAP_TEXT):
        bit, name = _SANICAP_TEXT[Action(code)]
        if not call.drive.state.sanicap & bit:
            raise Refused(f"{name} action unsupported")
    passes = call.options.number("owpass") or 0
    call.drive.sanitize(
        code
        | ("ause" in call.options) << 3
        | (passes & 15) << 4
        | ("oipbp" in call.options) << 8
        | ("no-dealloc" in call.options) << 9
        | ("emvs" in call.options) << 10
    )
    return Answer()


def _sanitize_log(call: Call) -> Answer:
    if FaultKind.SANITIZE_LOG_REFUSED in call.drive.faults:
        raise CommandFailed(Status.INVALID_LOG_PAGE)
    if not call.drive.state.sanicap & 7:
        raise CommandFailed(Status.INVALID_FIELD)
    fields = nvme_logs.sanitize_log(call.dialect, call.drive.state)
    shown = call.dialect.json({call.node.name: fields}) if call.options.as_json else nvme_logs.fields_text(fields)
    return Answer(out=shown)


def _create_ns(call: Call) -> Answer:
    flbas = call.options.number("flbas", 8) or 0
    block_size = call.options.number("block-size", 64)
    if block_size:
        formats = [index for index, (metadata, ds) in enumerate(LBA_FORMATS) if not metadata and 1 << ds == block_size]
        if not formats:
            raise Refused(f"FLBAS corresponding to block size {block_size} not found")
        flbas = formats[0]
    blocks, capacity = call.options.number("nsze", 64) or 0, call.options.number("ncap", 64) or 0
    if blocks != capacity:  # the drive does not provision thinly
        raise CommandFailed(Status.INVALID_FIELD)
    shared = bool((call.options.number("nmic", 8) or 0) & 1)
    dps = call.options.number("dps", 8) or 0
    nsid = call.drive.create_namespace(blocks, flbas, shared=shared, dps=dps)
    return call.dialect.done("create-ns", "created", nsid, as_json=call.options.as_json)


def _format(call: Call) -> Answer:
    lba_format = call.options.number("lbaf", 8)
    nsid: int | None = call.nsid()
    if nsid == _EVERY_NAMESPACE or call.drive.state.fna & 1:  # nvme-cli asks FNA itself
        nsid = None
    if lba_format is None:
        # It keeps the format of a namespace, but not those of all.
        lba_format = 0 if nsid is None else call.drive.namespace(nsid).lba_format
    extended, location = call.options.number("ms", 8) or 0, call.options.number("pil", 8) or 0
    dps = (call.options.number("pi", 8) or 0) | location << 3
    call.drive.format(nsid, lba_format | extended << 4, dps, call.options.number("ses", 8) or 0)
    call.host.sync_namespaces(call.drive)
    if call.dialect.version >= (3, 0) and "verbose" not in call.options:
        return Answer()
    return Answer(out=f"Success formatting namespace:{_EVERY_NAMESPACE if nsid is None else nsid:x}\n")


def _delete_ns(call: Call) -> Answer:
    nsid = call.nsid()
    for each in list(call.drive.state.namespaces) if nsid == _EVERY_NAMESPACE else [nsid]:
        call.drive.delete_namespace(each)
    call.host.sync_namespaces(call.drive)
    return call.dialect.done("delete-ns", "deleted", nsid, as_json=call.options.as_json)


def _attach_ns(call: Call) -> Answer:
    return _attachment(call, "attach-ns", call.drive.attach)


def _detach_ns(call: Call) -> Answer:
    return _attachment(call, "detach-ns", call.drive.detach)


def _attachment(call: Call, command: str, change: Callable[[int, list[int]], None]) -> Answer:
    nsid = call.options.number("namespace-id")
    if not nsid:
        raise Refused(f"{command}: namespace-id parameter required")
    try:
        cntlids = [int(part, 0) for part in (call.options.text("controllers") or "").split(",")]
    except ValueError:
        raise UsageError(f"{command}: controllers list is malformed") from None
    known = {slot.cntlid for slot in call.host.inventory.sharing(call.node.slot.spec.drive_id)}
    if not known.issuperset(cntlids):
        raise CommandFailed(Status.INVALID_FIELD)
    change(nsid, cntlids)
    call.host.sync_namespaces(call.drive)
    return call.dialect.done(command, "", nsid, as_json=call.options.as_json)


def _ns_rescan(call: Call) -> Answer:
    call.host.sync_namespaces(call.drive)
    return Answer()


def _write_zeroes(call: Call) -> Answer:
    blocks = (call.options.number("block-count", 16) or 0) + 1
    first = call.options.number("start-block", 64) or 0
    nsid = call.nsid()
    if "namespace-zeroes" in call.options:  # the drive does not have NSZ
        raise CommandFailed(Status.INVALID_FIELD)
    if not call.attached(nsid):
        raise CommandFailed(Status.INVALID_NAMESPACE)
    call.drive.write_zeroes(nsid, first, blocks)
    done = (first + blocks) / call.drive.namespace(nsid).blocks * 100
    if mishaps.vanish(call.host, call.node.slot.address, done):
        raise Refused("write-zeroes: Input/output error", errno.EIO)
    if call.dialect.version >= (3, 0) and "verbose" not in call.options:
        return Answer()
    return Answer(out="NVME Write Zeroes Success\n")


COMMANDS: Mapping[str, Callable[[Call], Answer]] = {
    "id-ctrl": _id_ctrl,
    "id-ns": _id_ns,
    "id-ns-granularity": _id_ns_granularity,
    "list-ns": _list_ns,
    "sanitize": _sanitize,
    "sanitize-log": _sanitize_log,
    "create-ns": _create_ns,
    "delete-ns": _delete_ns,
    "format": _format,
    "attach-ns": _attach_ns,
    "detach-ns": _detach_ns,
    "ns-rescan": _ns_rescan,
    "write-zeroes": _write_zeroes,
}
