"""Run ``autoclave audit``: show where the database, Placement and the hosts disagree, and the remedy."""

import argparse
import getpass
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oslo_config import cfg

from autoclave.audit.auditor import Auditor, Scope
from autoclave.audit.remedies import Remedies
from autoclave.cli.main import Cell, Rows
from autoclave.exceptions import AutoclaveError
from autoclave.rules.audit.model import Finding
from autoclave.services.audit import Audited, audited
from autoclave.services.service import Resources

_AGREE, _DISAGREE, _BLIND = 0, 1, 2

_COLUMNS = ("subject", "finding", "severity", "seen", "cause", "remedy")
_WIDTHS = {
    "subject": 18,
    "finding": 18,
    "severity": 11,
    "seen": 16,
    "cause": 16,
    "remedy": 20,
    "done": 18,
    "reason": 40,
}
"""Limit the characters of a line in the table, which must fit on a terminal of 120 columns."""

Table = tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]


def add_audited(parser: argparse.ArgumentParser) -> None:
    """Add the options that select the records and the host: see :func:`audited`."""
    parser.add_argument(
        "--config-file",
        action="append",
        default=[],
        metavar="FILE",
        help="configuration file of the agent, to audit this host as well, or of another service (repeatable)",
    )
    data_dir = os.environ.get("AUTOCLAVE_DATA_DIR")
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=Path(data_dir) if data_dir else None,
        help="data directory of `autoclave up`, running or stopped (env AUTOCLAVE_DATA_DIR; default: [agent] data_dir)",
    )


class Audit(Rows):
    """Compare the database, Placement and this host, device by device. Change nothing without --fix or --yes.

    The exit code is 0 if all agree, 1 if there are findings (also if --fix corrected them), 2 if the audit failed.
    """

    nothing = "Nothing was found."
    _code = _AGREE

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_audited(parser)
        parser.add_argument("--host", help="only the devices of this host")
        parser.add_argument("--device", metavar="DEVICE", help="only this device: uuid, or HOST/PCI-ADDRESS")
        parser.add_argument(
            "--wait",
            type=_seconds,
            default=5.0,
            metavar="SECONDS",
            help="seconds until each finding is checked again; only findings that persist are reported (5)",
        )
        do = parser.add_mutually_exclusive_group()
        do.add_argument(
            "--fix",
            action="store_true",
            help="only make devices less available: raise reserved, put devices that others use or wrote to into "
            "error, restore missing allocations of instances",
        )
        do.add_argument(
            "--quarantine",
            action="store_true",
            help="after a restore of the database from a backup: show the devices whose state it cannot prove; with "
            "--yes, put them into error",
        )
        parser.add_argument(
            "--yes", action="store_true", help="with --quarantine: apply the changes, instead of only showing them"
        )
        parser.add_argument(
            "--force",
            action="store_true",
            help="with --quarantine: proceed although agents reported within the last minutes",
        )
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Audit, print the findings, and return the exit code."""
        try:
            super().run(parsed_args)
        except (AutoclaveError, cfg.Error, OSError) as error:
            if self.app.options.debug:
                raise
            self.app.LOG.error(error)
            return _BLIND
        return self._code

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Audit, fix if requested, and return the findings.

        :raises AutoclaveError: nothing could be audited, the arguments match no record, or agents run that must not.
        """
        with _parts(parsed_args) as parts:
            if parts.schema_behind is not None:
                self._code = _BLIND
                return _COLUMNS, [_row(parts.schema_behind)]
            scope = Scope(parsed_args.host, parsed_args.device)
            scope.require_on_record(parts.db)
            remedies = Remedies(parts.db, parts.placement, getpass.getuser(), parts.patience)
            if parsed_args.quarantine:
                return self._quarantine(remedies, scope, yes=parsed_args.yes, force=parsed_args.force)
            auditor = Auditor(parts.db, parts.placement, parts.hosts, parts.unseen, patience=parts.patience)
            findings = auditor.audit(scope, parsed_args.wait)
            if any(finding.counts for finding in findings):
                self._code = _DISAGREE
            if not parsed_args.fix:
                return _COLUMNS, [_row(finding) for finding in findings]
            done = remedies.fix(findings)
            columns = tuple("done" if column == "cause" else column for column in _COLUMNS)
            return columns, [_row(finding, columns, done.get(finding)) for finding in findings]

    def _quarantine(self, remedies: Remedies, scope: Scope, *, yes: bool, force: bool) -> Table:
        found = remedies.unproved(scope)
        alive = remedies.alive([row for row, _ in found])
        if yes and alive and not force:
            raise AutoclaveError(
                f"the agents of {', '.join(alive)} reported within the last minutes. Stop them and the conductors "
                "first. If they are stopped, and only the backup shows them as alive, use --force"
            )
        if found:
            self._code = _DISAGREE
        done: Iterable[str | None] = list(remedies.quarantine(found)) if yes else [None] * len(found)
        if found and not yes:
            self.app.LOG.warning("Nothing was changed. To put each of these into error, use --yes.")
        columns = ("subject", "device", "reason", "done")
        rows = [(row.slot, row.uuid, why, what) for (row, why), what in zip(found, done, strict=True)]
        return columns, [_cells(columns, row) for row in rows]


@contextmanager
def _parts(parsed_args: argparse.Namespace) -> Iterator[Audited]:
    resources = Resources()
    try:
        yield audited(parsed_args.config_file, parsed_args.data_dir, resources)
    finally:
        resources.close()


def _row(finding: Finding, columns: Sequence[str] = _COLUMNS, done: str | None = None) -> tuple[Cell, ...]:
    kind = finding.kind
    values = {
        "subject": finding.subject,
        "finding": kind.label,
        "severity": kind.severity.value,
        "seen": finding.seen,
        "cause": kind.cause,
        "remedy": finding.remedy,
        "done": done,
    }
    return _cells(columns, [values[column] for column in columns])


def _cells(columns: Sequence[str], values: Sequence[Any]) -> tuple[Cell, ...]:
    return tuple(Cell(value, width=_WIDTHS.get(column)) for column, value in zip(columns, values, strict=True))


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to 3600")
    return seconds
