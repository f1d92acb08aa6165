"""Answer the commands of nvme-cli for one simulated drive.

Keys and their order follow each version of nvme-cli.
"""

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoclave.simulator import zeroing
from autoclave.simulator.drive import Drive
from autoclave.simulator.drive_spec import Slot
from autoclave.simulator.drive_state import LBA_FORMATS, Action, DriveState, Namespace, Outcome
from autoclave.simulator.faults import FaultKind
from autoclave.simulator.nvme_dialect import Answer, Dialect, Options, UsageError
from autoclave.simulator.nvme_status import CommandFailed, Status
from autoclave.simulator.slots import DeviceNode, DriveSlots

_NOT_REPORTED = 0xFFFFFFFF
_AT_REST = 0xFFFF
_STATUS = {
    Outcome.NEVER: "NVM Subsystem has never been sanitized.",
    Outcome.COMPLETED: "Most Recent Sanitize Command Completed Successfully.",
    Outcome.IN_PROGRESS: "Sanitize in Progress.",
    Outcome.FAILED: "Most Recent Sanitize Command Failed.",
    Outcome.COMPLETED_WITHOUT_DEALLOCATION: "Most Recent Sanitize Command (No-Deallocate After Sanitize) Completed "
    "Successfully.",
}
_ESTIMATES = (
    "time_over_write",
    "time_block_erase",
    "time_crypto_erase",
    "time_over_write_no_dealloc",
    "time_block_erase_no_dealloc",
    "time_crypto_erase_no_dealloc",
)


def sanitize_log(dialect: Dialect, state: DriveState) -> dict[str, Any]:
    """Return log page 81h of a drive."""
    operation = state.operation
    outcome = Outcome(operation.outcome) if operation else Outcome.NEVER
    cdw10 = operation.cdw10 if operation else 0
    running = operation is not None and operation.running
    overwritten = operation is not None and operation.action == Action.OVERWRITE and not running
    status: dict[str, Any] = {
        "global_erased": int(state.global_erased),
        "no_cmplted_passes": (cdw10 >> 4 & 15 or 16) if overwritten and outcome != Outcome.FAILED else 0,
        "status": f"({outcome:d}) {_STATUS[outcome]}",
    }
    new = dialect.version >= (2, 13)
    if new:
        status = {"media_verification_canceled": 0, **status}
    sprog = int(operation.fraction * 65536) if operation and running and not operation.verifying else _AT_REST
    log: dict[str, Any] = {"sprog": sprog, "sstat": status, "cdw10_info": cdw10}
    log |= {key: dialect.u32(_NOT_REPORTED) for key in _ESTIMATES}
    if new:
        log["time_post_verification_dealloc"] = 0
        log["sanitize_state_information"] = {
            "sanitize_state": "(4) Media Verification" if operation and operation.verifying else "(0) Idle state"
        }
    return log


def namespace_list(dialect: Dialect, nsids: Sequence[int], *, as_json: bool) -> str:
    """Return the output of list-ns."""
    if as_json:
        return dialect.json({"nsid_list": [{"nsid": nsid} for nsid in nsids]})
    return "".join(f"[{index:4}]:0x{nsid:x}\n" for index, nsid in enumerate(nsids))


def fields_text(fields: dict[str, Any]) -> str:
    """Format fields as text lines, for commands whose text is not to be parsed."""
    return "".join(f"{key:<10}: {value}\n" for key, value in fields.items() if not isinstance(value, list))


# key[=value][@first version that prints it]; a key without a value is 0.
_CONTROLLER = """
vid ssvid sn mn fr rab=6 ieee=5395456 cmic mdts=7 cntlid ver=66560 rtd3r rtd3e oaes=256 ctratt=32768 rrls
bpcap@2.11 nssl@2.11 plsi@2.11 cntrltype=1@2.0 fguid@2.0 crdt1 crdt2 crdt3 crcap@2.11 nvmsr vwci mec oacs acl=3 aerl=3
frmw=3 lpa=7 elpe npss avscc apsta wctemp=343 cctemp=373 mtfa hmpre hmmin tnvmcap unvmcap rpmbs edstt dsto fwug kas
hctma mntmt mxtmt sanicap hmminds hmmaxd nsetidmax endgidmax@2.0 anatt anacap anagrpmax nanagrpid pels@2.0 domainid
kpioc@2.11 mptfawr@2.11 megcap tmpthha@2.11 cqt@2.11 cdpa@3.0 mup@3.0 ipmsr@3.0 msmt@3.0 sqes=102 cqes=68 maxcmd
nn=256 oncs fuses fna vwc=7 awun awupf icsvscc nwpc acwu ocfs=3 sgls=1 mnan@2.0 maxdna maxcna oaqd@2.11 rhiri@2.11
hirt@2.11 cmmrtd@2.11 nmmrtd@2.11 minmrtg@2.11 maxmrtg@2.11 trattr@2.11 mcudmq@2.11 mnsudmq@2.11 mcmr@2.11 nmcmr@2.11
mcdqpc@2.11 subnqn ioccsz iorcsz icdoff fcatt msdbd ofcs dctype@3.0 ccrl@3.0
"""
_POWER_STATE = """
max_power=2500 entry_lat=16 exit_lat=4 read_tput read_lat write_tput write_lat idle_power idle_scale active_power
active_power_work active_scale
"""
_POWER_STATE_NEW = """
emerg_power_fail_recover_time emerg_power_fail_recover_scale force_quiesce_vault_time force_quiesce_vault_scale
emerg_power_fail_vault_time emerg_power_fail_vault_scale
"""
_NAMESPACE_HEAD = """
nsze ncap nuse nsfeat nlbaf flbas mc dpc dps nmic rescap fpi dlfeat@2.0 nawun nawupf nacwu nabsn nabo nabspf noiob
nvmcap
"""
_NAMESPACE_TAIL_OLD = "mssrl mcl msrc nulbaf anagrpid endgid eui64 nguid"
_NAMESPACE_TAIL = "mssrl mcl msrc kpios nulbaf kpiodaag anagrpid nsattr nvmsetid endgid nguid eui64"
_NAMESPACE_PREFERENCES = "npwg npwa npdg=7 npda=7 nows"


def controller(dialect: Dialect, slot: Slot, state: DriveState) -> dict[str, Any]:
    """Return Identify Controller."""
    fields = _fields(dialect, _CONTROLLER)
    manages = state.manages_namespaces
    own = {
        "vid": int(slot.spec.vendor, 16),
        "ssvid": int(slot.spec.vendor, 16),
        "sn": state.serial.ljust(20),
        "mn": state.model.ljust(40),
        "fr": state.firmware.ljust(8),
        "cmic": 2 if slot.spec.subsystem else 0,
        "cntlid": slot.cntlid,
        "fguid": "00000000-0000-0000-0000-000000000000",
        "oacs": state.oacs,
        "fna": state.fna,
        "tnvmcap": dialect.u128(state.capacity if manages else 0),
        "unvmcap": dialect.u128(state.unallocated if manages else 0),
        "megcap": dialect.u128(0),
        "maxdna": dialect.u128(0),
        "sanicap": dialect.u32(state.sanicap),
        "oncs": state.oncs,
        "nn": state.max_namespaces,
        "ctratt": 0x8000 | 0x80 * state.reports_granularity,
        "subnqn": state.nqn,
    }
    fields.update({key: value for key, value in own.items() if key in fields})
    power_state = _fields(dialect, _POWER_STATE)
    if dialect.version >= (2, 11):
        kinds = {"max_power_scale": 0, "non-operational_state": 0}
        power_state |= _fields(dialect, _POWER_STATE_NEW)
    else:
        kinds = {"flags": 0}
    return {**fields, "psds": [{"max_power": power_state.pop("max_power"), **kinds, **power_state}]}


def namespace(dialect: Dialect, active: Namespace | None, *, formats: bool = False) -> dict[str, Any]:
    """Return Identify Namespace.

    :param active: None for an id that is not attached, which is all zeros.
    :param formats: show the available formats although the namespace is not attached.
    """
    old = dialect.version < (2, 11)
    fields = _fields(dialect, _NAMESPACE_HEAD)
    fields["nvmcap"] = dialect.u128(0)
    if old:
        fields |= {"nsattr": 0, "nvmsetid": 0}
    if active is not None:
        fields |= _fields(dialect, _NAMESPACE_PREFERENCES)
    fields |= _fields(dialect, _NAMESPACE_TAIL_OLD if old else _NAMESPACE_TAIL)
    fields |= {"nguid": "0" * 32, "eui64": "0" * 16}
    lba_formats = LBA_FORMATS if active is not None or formats else ((0, 0),)
    fields["nlbaf"] = len(lba_formats) - 1
    if active is not None:
        blocks = active.blocks
        capacity = blocks - active.without_storage
        sizes = {"nsze": blocks, "ncap": capacity, "nuse": capacity, "nsfeat": 20}
        fields |= {**sizes, "flbas": active.flbas, "dps": active.dps, "mc": 3, "dpc": 31, "nmic": int(active.shared)}
    in_use = active.lba_format if active is not None else 0
    fields["lbafs"] = [
        {"lbaf": index, "ms": ms, "ds": ds, "rp": 0, "in_use": int(index == in_use)}
        if dialect.version >= (2, 16)
        else {"ms": ms, "ds": ds, "rp": 0}
        for index, (ms, ds) in enumerate(lba_formats)
    ]
    if not old:
        fields["vs"] = []
    return fields


def granularity(state: DriveState) -> dict[str, Any]:
    """Return the Namespace Granularity List: one entry for all LBA formats."""
    entry = {f"namespace-{kind}-granularity": state.granularity for kind in ("size", "capacity")}
    return {"attributes": 0, "num-descriptors": 0, "namespace-granularity-list": [entry]}


def _fields(dialect: Dialect, table: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for entry in table.split():
        definition, _, since = entry.partition("@")
        key, _, value = definition.partition("=")
        if not since or dialect.version >= tuple(map(int, since.split("."))):
            fields[key] = int(value or 0)
    return fields


_EVERY_NAMESPACE = 0xFFFFFFFF
_IDS_PER_LIST = 1024
_ACTION_WORDS = {
    "exit-failure": Action.EXIT_FAILURE_MODE,
    "start-block-erase": Action.BLOCK_ERASE,
    "start-overwrite": Action.OVERWRITE,
    "start-crypto-erase": Action.CRYPTO_ERASE,
}
# The capabilities that 3.x checks itself before it sends the command.
_SANICAP_TEXT = {
    Action.CRYPTO_ERASE: (1 << 0, "crypto erase"),
    Action.BLOCK_ERASE: (1 << 1, "block erase"),
    Action.OVERWRITE: (1 << 2, "overwrite"),
}


class Refused(Exception):
    """Report a refusal by nvme-cli or the kernel, before the drive gets the command.

    :attr errno: the errno of the reason.
    """

    def __init__(self, message: str, number: int = errno.EINVAL) -> None:
        super().__init__(message)
        self.errno = number


@dataclass(frozen=True)
class Call:
    """Hold one command for a drive, which is locked during the command."""

    host: DriveSlots
    dialect: Dialect
    node: DeviceNode
    drive: Drive
    options: Options

    def nsid(self) -> int:
        """Return the given namespace, or else that of the block device."""
        nsid = self.options.number("namespace-id")
        if nsid is None:
            nsid = self.node.nsid
        if nsid is None:
            raise Refused("get-namespace-id: Inappropriate ioctl for device", errno.ENOTTY)
        return nsid

    def attached(self, nsid: int) -> bool:
        """Return whether the namespace is attached to the addressed controller."""
        namespace = self.drive.state.namespaces.get(nsid)
        return namespace is not None and self.node.slot.cntlid in namespace.attached


def _id_ctrl(call: Call) -> Answer:
    fields = controller(call.dialect, call.node.slot, call.drive.state)
    return Answer(out=call.dialect.json(fields) if call.options.as_json else fields_text(fields))


def _id_ns(call: Call) -> Answer:
    nsid = call.nsid()
    common = nsid == _EVERY_NAMESPACE
    if nsid == 0 or (common and not call.drive.state.manages_namespaces):
        raise CommandFailed(Status.INVALID_NAMESPACE)
    active = call.drive.state.namespaces[nsid] if call.attached(nsid) else None
    fields = namespace(call.dialect, active, formats=common)
    return Answer(out=call.dialect.json(fields) if call.options.as_json else fields_text(fields))


def _list_ns(call: Call) -> Answer:
    if FaultKind.LIST_NS_REFUSED in call.drive.faults:
        raise CommandFailed(Status.INVALID_FIELD)
    if "all" in call.options and not call.drive.state.manages_namespaces:
        raise CommandFailed(Status.INVALID_FIELD)
    start = call.options.number("namespace-id") or 1
    nsids = [n for n in sorted(call.drive.state.namespaces) if "all" in call.options or call.attached(n)]
    page = [nsid for nsid in nsids if nsid >= start][:_IDS_PER_LIST]
    return Answer(out=namespace_list(call.dialect, page, as_json=call.options.as_json))


def _id_ns_granularity(call: Call) -> Answer:
    if not call.drive.state.reports_granularity:
        raise CommandFailed(Status.INVALID_FIELD)
    fields = granularity(call.drive.state)
    return Answer(out=call.dialect.json(fields) if call.options.as_json else fields_text(fields))


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
    fields = sanitize_log(call.dialect, call.drive.state)
    shown = call.dialect.json({call.node.name: fields}) if call.options.as_json else fields_text(fields)
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
    if blocks != capacity:  # the drive does not support thin provisioning
        raise CommandFailed(Status.INVALID_FIELD)
    shared = bool((call.options.number("nmic", 8) or 0) & 1)
    dps = call.options.number("dps", 8) or 0
    nsid = call.drive.create_namespace(blocks, flbas, shared=shared, dps=dps)
    return call.dialect.done("create-ns", "created", nsid, as_json=call.options.as_json)


def _format(call: Call) -> Answer:
    lba_format = call.options.number("lbaf", 8)
    nsid: int | None = call.nsid()
    if nsid == _EVERY_NAMESPACE or call.drive.state.fna & 1:  # nvme-cli checks FNA itself
        nsid = None
    if lba_format is None:
        # nvme-cli keeps the format of one namespace, but not those of all.
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
    if zeroing.vanish(call.host, call.node.slot.address, done):
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
