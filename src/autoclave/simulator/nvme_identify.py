"""What Identify answers, in the keys and the order of each version of nvme-cli."""

from typing import Any

from autoclave.simulator.drive_state import LBA_FORMATS, DriveState, Namespace
from autoclave.simulator.inventory import Slot
from autoclave.simulator.nvme_dialect import Dialect

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
    """Identify Controller."""
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
    """Identify Namespace.

    :param active: None for an id that is not attached, which is all zeros.
    :param formats: show what formats there are although nothing is attached.
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
    """Namespace Granularity List: one entry that holds for every LBA format."""
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
