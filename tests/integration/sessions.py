"""The console sessions of the documentation: their commands are run as they are printed, in a reader's shell.

What a page shows below a command is what the command prints: each shown line must be among the lines of its output,
in the same order; ``…`` in it stands for what is different each time. Commands behind ``#`` are root's, on a machine
of the reader's, and are not run unless the session names them.
"""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from processes import COMMAND, Process, wait_until

from freeport import free_port

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "source"
DATA_DIR = "/tmp/autoclave"
"""What the pages call the data directory."""
URL = "http://127.0.0.1:6666"

_BLOCK = re.compile(r"^( *)\.\. code-block:: console\n((?:\1 {3}.*\n|\n)+)", re.MULTILINE)
_WAIT = "while autoclave device list -f value -c device_state | grep -q cleaning; do sleep 0.2; done"
"""The patience of a reader of `autoclave up`."""
_MARK = "-- command "
_UP = "autoclave up "


@dataclass
class Step:
    """A command, and the lines that the page shows of its output."""

    command: str
    is_roots: bool = False
    shown: list[str] = field(default_factory=list)
    output: str = ""


def steps(page: str) -> list[Step]:
    """All steps of the sessions of *page*, a text, in its order."""
    found: list[Step] = []
    for _, block in _BLOCK.findall(page):
        goes_on = False
        for line in textwrap.dedent(block).splitlines():
            if goes_on:
                found[-1].command += f"\n{line}"
                goes_on = line.endswith("\\")
            elif line.startswith(("$ ", "# ")):
                found.append(Step(line[2:], is_roots=line.startswith("#")))
                goes_on = line.endswith("\\")
            elif line.strip():
                found[-1].shown.append(line.rstrip())
    return found


@dataclass(frozen=True)
class Session:
    """How the sessions of a page are run.

    :ivar page: its name.
    :ivar begin: the line of the page from which on it is run; the first one if empty.
    :ivar end: the line before which it ends; behind the last one if empty.
    :ivar hosts: how many are simulated.
    :ivar config: the configuration of ``autoclave up``; ``HERE`` in it is where the reader is.
    :ivar files: what the reader has there.
    :ivar before: what a reader of the page has done already.
    :ivar instead: what a reader puts in the place of the page's examples.
    :ivar roots: how commands of root's begin that are run here.
    :ivar left_out: how commands begin that are not.
    :ivar patience: how a command begins, and what its reader waits for before he goes on.
    """

    page: str
    begin: str = ""
    end: str = ""
    hosts: int = 2
    config: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    before: Sequence[str] = ()
    instead: Mapping[str, str] = field(default_factory=dict)
    roots: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    patience: Mapping[str, str] = field(default_factory=dict)

    def steps(self) -> list[Step]:
        """Those of the page, or of the part of it that is meant, that are run."""
        page = (PAGES / self.page).read_text()
        begin = page.index(f"\n{self.begin}\n") if self.begin else 0
        end = page.index(f"\n{self.end}\n") if self.end else len(page)
        return [
            step
            for step in steps(page[begin:end])
            if not step.command.startswith(self.left_out) and (not step.is_roots or step.command.startswith(self.roots))
        ]

    def waits_for(self, command: str) -> list[str]:
        """What its reader waits for after *command*."""
        return [wait for beginning, wait in self.patience.items() if command.startswith(beginning)]


class Reader:
    """A reader's shell.

    :param directory: where he is.
    :param instead: what he puts in the place of names of the pages, besides what the session says.
    :param told: commands that he has been told to begin with.
    :param wait: what he waits for after every command.
    :param log: what the services have said, for whoever reads of a failure.
    """

    def __init__(
        self,
        directory: Path,
        session: Session,
        *,
        instead: Mapping[str, str],
        told: Sequence[str] = (),
        wait: str = ":",
        log: Callable[[], str] = str,
    ) -> None:
        self._directory = directory
        self._session = session
        self._instead = {**session.instead, **instead}
        self._told = told
        self._wait = wait
        self._log = log

    def local(self, text: str) -> str:
        """*text* with what is here in the place of the page's examples."""
        for theirs, ours in self._instead.items():
            text = text.replace(theirs, ours)
        return text

    def run(self, steps: Sequence[Step]) -> None:
        """Run *steps* to their end, and see that they print what the page shows."""
        assert steps
        session = self._session
        script = ["set -euo pipefail", *self._told, *session.before, self._wait]
        for number, step in enumerate(steps):
            script += [
                f"printf '\\n%s\\n' '{_MARK}{number}'",
                step.command,
                *session.waits_for(step.command),
                self._wait,
            ]
        # A reader's shell, not ours: other tests may have left something in our environment.
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "HOME": str(self._directory),
            "LANG": "C.UTF-8",
            "COLUMNS": "120",
        }
        done = subprocess.run(
            ["bash", "-c", self.local("\n".join(script))],
            env=environment,
            cwd=self._directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, f"{done.stdout}\n{self._log()}"
        outputs = re.split(rf"^{_MARK}\d+\n", done.stdout, flags=re.MULTILINE)[1:]
        for step, output in zip(steps, outputs, strict=True):
            step.output = output
            self.compare(step)

    def compare(self, step: Step) -> None:
        """See that *step* has printed what the page shows."""
        printed = iter(step.output.splitlines())
        for line in map(self.local, step.shown):
            pattern = re.compile(".*".join(map(re.escape, line.split("…"))))
            assert any(pattern.fullmatch(each.rstrip()) for each in printed), (
                f"{self._session.page} shows of `{step.command}`:\n{line}\nIt printed:\n{step.output}"
            )


class Service:
    """``autoclave up`` on simulated hosts, and a reader's shell beside it."""

    def __init__(self, directory: Path, session: Session) -> None:
        self._directory = directory
        self._session = session
        self.data_dir = directory / "data"
        bind = f"127.0.0.1:{free_port()}"
        self.url = f"http://{bind}"
        argv = [COMMAND, "up", "--simulate", str(session.hosts), "--data-dir", str(self.data_dir), "--bind", bind]
        for name, text in session.files.items():
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_text(text)
        if session.config:
            (directory / "autoclave.conf").write_text(session.config.replace("HERE", str(directory)))
            argv += ["--config-file", str(directory / "autoclave.conf")]
        self.process = Process(argv, directory / "log")

    @property
    def exports(self) -> list[str]:
        """What it has told a reader's shell."""
        return [line for line in self.process.log.splitlines() if line.startswith("export ")]

    def wait(self) -> None:
        """Wait until it answers, and has said so."""
        self.process.wait_for_http(f"{self.url}/healthcheck")
        wait_until("what `autoclave up` tells", lambda: len(self.exports) == 2, lambda: self.process.log)

    def run(self) -> list[Step]:
        """Run the session to its end, and see that it prints what the page shows."""
        reader = Reader(
            self._directory,
            self._session,
            instead={DATA_DIR: str(self.data_dir), URL: self.url},
            told=self.exports,
            wait=_WAIT,
            log=lambda: self.process.log,
        )
        told = []
        for step in self._session.steps():
            if step.command.startswith(_UP):
                step.output = self.process.log
                reader.compare(step)
            else:
                told.append(step)
        reader.run(told)
        return told


@contextmanager
def served(directory: Path, session: Session) -> Iterator[Service]:
    """Run ``autoclave up`` for a session."""
    service = Service(directory, session)
    try:
        service.wait()
        yield service
    finally:
        service.process.kill()
