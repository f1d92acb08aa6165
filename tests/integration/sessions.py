"""The console sessions of the documentation: their commands are run as they are printed, in a reader's shell.

What a page shows below a command is what the command prints: each shown line must be among the lines of its output,
in the same order; ``…`` in it stands for what is different each time. Commands behind ``#`` are root's, on a machine
of the reader's, and are not run.
"""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from processes import COMMAND, Process, free_port, wait_until

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "source"
DATA_DIR = "/tmp/autoclave"
"""What the pages call the data directory."""
URL = "http://127.0.0.1:6666"

_BLOCK = re.compile(r"^( *)\.\. code-block:: console\n((?:\1 {3}.*\n|\n)+)", re.MULTILINE)
_WAIT = "while autoclave device list -f value -c device_state | grep -q cleaning; do sleep 0.2; done"
"""A reader's patience, after every command."""
_MARK = "-- command "
_UP = "autoclave up "


@dataclass
class Step:
    """A command, and the lines that the page shows of its output."""

    command: str
    shown: list[str] = field(default_factory=list)
    output: str = ""


def steps(page: str) -> list[Step]:
    """All steps of the sessions of *page*, a text, in its order."""
    found: list[Step] = []
    for _, block in _BLOCK.findall(page):
        ours, goes_on = False, False
        for line in textwrap.dedent(block).splitlines():
            if goes_on:
                goes_on = line.endswith("\\")
                if ours:
                    found[-1].command += f"\n{line}"
            elif line.startswith(("$ ", "# ")):
                ours, goes_on = line.startswith("$"), line.endswith("\\")
                if ours:
                    found.append(Step(line[2:]))
            elif line.strip() and ours:
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
    """

    page: str
    begin: str = ""
    end: str = ""
    hosts: int = 2
    config: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    before: Sequence[str] = ()
    instead: Mapping[str, str] = field(default_factory=dict)

    def steps(self) -> list[Step]:
        """Those of the page, or of the part of it that is meant."""
        page = (PAGES / self.page).read_text()
        begin = page.index(f"\n{self.begin}\n") if self.begin else 0
        end = page.index(f"\n{self.end}\n") if self.end else len(page)
        return steps(page[begin:end])


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

    def _local(self, text: str) -> str:
        """*text* with this machine's directory and address for those of the pages."""
        for theirs, ours in self._session.instead.items():
            text = text.replace(theirs, ours)
        return text.replace(DATA_DIR, str(self.data_dir)).replace(URL, self.url)

    def run(self) -> list[Step]:
        """Run the session to its end, and see that it prints what the page shows."""
        session, told = self._session, []
        for step in session.steps():
            if step.command.startswith(_UP):
                step.output = self.process.log
                self._compare(step)
            else:
                told.append(step)
        assert told
        script = ["set -euo pipefail", *self.exports, *session.before, _WAIT]
        for number, step in enumerate(told):
            script += [f"printf '\\n%s\\n' '{_MARK}{number}'", step.command, _WAIT]
        text = "\n".join(script)
        # A reader's shell, not ours: other tests may have left something in our environment.
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "HOME": str(self._directory),
            "LANG": "C.UTF-8",
            "COLUMNS": "120",
        }
        done = subprocess.run(
            ["bash", "-c", self._local(text)],
            env=environment,
            cwd=self._directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{done.stdout}\n{self.process.log}"
        outputs = re.split(rf"^{_MARK}\d+\n", done.stdout, flags=re.MULTILINE)[1:]
        for step, output in zip(told, outputs, strict=True):
            step.output = output
            self._compare(step)
        return told

    def _compare(self, step: Step) -> None:
        printed = iter(step.output.splitlines())
        for line in map(self._local, step.shown):
            pattern = re.compile(".*".join(map(re.escape, line.split("…"))))
            assert any(pattern.fullmatch(each.rstrip()) for each in printed), (
                f"{self._session.page} shows of `{step.command}`:\n{line}\nIt printed:\n{step.output}"
            )


@contextmanager
def served(directory: Path, session: Session) -> Iterator[Service]:
    """Run ``autoclave up`` for a session."""
    service = Service(directory, session)
    try:
        service.wait()
        yield service
    finally:
        service.process.kill()
