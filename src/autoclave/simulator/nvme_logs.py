"""The Sanitize Status log and the lists, as each version of nvme-cli prints them."""

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
    ("time_over_write", "Overwrite                   "),
    ("time_block_erase", "Block Erase                 "),
    ("time_crypto_erase", "Crypto Erase                "),
    ("time_over_write_no_dealloc", "Overwrite (No-Deallocate)   "),
    ("time_block_erase_no_dealloc", "Block Erase (No-Deallocate) "),
    ("time_crypto_erase_no_dealloc", "Crypto Erase (No-Deallocate)"),
)


class SanitizeLog:
    """Log page 81h of a drive."""

    def __init__(self, state: DriveState) -> None:
        operation = state.operation
        self.outcome = Outcome(operation.outcome) if operation else Outcome.NEVER
        self.cdw10 = operation.cdw10 if operation else 0
        running = operation is not None and operation.running
        self.sprog = int(operation.fraction * 65536) if operation and running else _AT_REST
        self.global_erased = state.global_erased
        overwritten = operation is not None and operation.action == Action.OVERWRITE and not running
        self.passes = (self.cdw10 >> 4 & 15 or 16) if overwritten and self.outcome != Outcome.FAILED else 0

    @property
    def sstat(self) -> int:
        return self.outcome | self.passes << 3 | self.global_erased << 8

    def json(self, dialect: Dialect, device: str) -> str:
        status: dict[str, Any] = {
            "global_erased": int(self.global_erased),
            "no_cmplted_passes": self.passes,
            "status": f"({self.outcome:d}) {_STATUS[self.outcome]}",
        }
        new = dialect.version >= (2, 13)
        if new:
            status = {"media_verification_canceled": 0, **status}
        log: dict[str, Any] = {"sprog": self.sprog, "sstat": status, "cdw10_info": self.cdw10}
        log |= {key: dialect.u32(_NOT_REPORTED) for key, _ in _ESTIMATES}
        if new:
            log["time_post_verification_dealloc"] = 0
            log["sanitize_state_information"] = {"sanitize_state": "(0) Idle state"}
        return dialect.json({device: log})

    def text(self, dialect: Dialect, *, human: bool) -> str:
        new = dialect.version >= (2, 13)
        sstat = self.sstat & 7 if (2, 0) <= dialect.version < (2, 5) else self.sstat
        lines = [
            f"Sanitize Progress                      (SPROG) :  {self.sprog}",
            f"Sanitize Status                        (SSTAT) :  0x{sstat:x}",
        ]
        if human:
            lines += self._explained(new=new)
        lines.append(f"Sanitize Command Dword 10 Information (SCDW10) :  0x{self.cdw10:x}")
        lines += [f"Estimated Time For {what}:  {_NOT_REPORTED} (No time period reported)" for _, what in _ESTIMATES]
        if new:
            lines.append("Estimated Time For Post-Verification Deallocation:  0")
            lines.append("Sanitize State Information               (SSI) : 0")
            if human:
                lines += ["  [3:0] : Sanitize State : 0\tIdle state", ""]
        return "\n".join([*lines, ""])

    def _explained(self, *, new: bool) -> list[str]:
        status = _STATUS[self.outcome]
        if not new:
            erased = (
                "Global Data Erased set: no NS LB in the NVM subsystem has been written to and no PMR in the NVM "
                "subsystem has been enabled"
                if self.global_erased
                else "Global Data Erased cleared: a NS LB in the NVM subsystem has been written to or a PMR in the NVM "
                "subsystem has been enabled"
            )
            return [
                f"\t[2:0]\t{status}",
                f"\t[7:3]\tNumber of completed passes if most recent operation was overwrite:\t{self.passes}",
                f"\t  [8]\t{erased}",
            ]
        erased = (
            "No user data has been written in the NVM subsystem and no PMR has been enabled in the NVM subsystem"
            if self.global_erased
            else "User data has been written in the NVM subsystem or PMR has been enabled in the NVM subsystem"
        )
        return [
            f"  [2:0] : Sanitize Operation Status  : 0x{self.outcome:x}\t{status}",
            f"  [7:3] : Overwrite Passes Completed : {self.passes}",
            f"  [8:8] : Global Data Erased         : 0x{self.global_erased:x}\t{erased}",
            "  [9:9] : Media Verification Canceled: 0\tNot canceled",
            "",
        ]


def namespace_list(dialect: Dialect, nsids: Sequence[int], *, as_json: bool) -> str:
    """The answer of list-ns."""
    if as_json:
        return dialect.json({"nsid_list": [{"nsid": nsid} for nsid in nsids]})
    return "".join(f"[{index:4}]:0x{nsid:x}\n" for index, nsid in enumerate(nsids))


def controller_list(dialect: Dialect, cntlids: Sequence[int], *, as_json: bool) -> str:
    """The answer of list-ctrl."""
    if as_json:
        return dialect.json({"num_ctrl": len(cntlids), "ctrl_list": [{"ctrl_id": cntlid} for cntlid in cntlids]})
    lines = [f"num of ctrls present: {len(cntlids)}"]
    return "\n".join([*lines, *(f"[{index:4}]:0x{cntlid:x}" for index, cntlid in enumerate(cntlids)), ""])


def fields_text(fields: dict[str, Any]) -> str:
    """Fields as lines of text, for commands whose text nobody should parse."""
    return "".join(f"{key:<10}: {value}\n" for key, value in fields.items() if not isinstance(value, list))
