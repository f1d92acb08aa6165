"""The Sanitize Status log and the list of namespaces, as each version of nvme-cli prints them."""

from collections.abc import Sequence
from typing import Any

from autoclave.simulator.drive_state import DriveState
from autoclave.simulator.nvme_dialect import Dialect
from autoclave.simulator.sanitize import Action, Outcome

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
    """Log page 81h of a drive."""
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
    """The answer of list-ns."""
    if as_json:
        return dialect.json({"nsid_list": [{"nsid": nsid} for nsid in nsids]})
    return "".join(f"[{index:4}]:0x{nsid:x}\n" for index, nsid in enumerate(nsids))


def fields_text(fields: dict[str, Any]) -> str:
    """Fields as lines of text, for commands whose text nobody should parse."""
    return "".join(f"{key:<10}: {value}\n" for key, value in fields.items() if not isinstance(value, list))
