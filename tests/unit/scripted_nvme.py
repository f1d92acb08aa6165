"""An executable ``nvme`` that says what a test wrote down, for what no simulated drive does."""

from pathlib import Path

SAMPLES = Path(__file__).parents[1] / "data" / "nvme-cli"

_SCRIPT = """#!/bin/sh
cd {root}
echo "$@" >> calls
n=$(grep -c "^$1\\( \\|$\\)" calls)
while [ ! -e $1.$n.rc ]; do n=$((n - 1)); [ $n = 0 ] && exit 99; done
[ -e $1.$n.hook ] && . ./$1.$n.hook
cat $1.$n.out
cat $1.$n.err >&2
exit $(cat $1.$n.rc)
"""


class ScriptedNvme:
    """The tool. Each command gives its answers in their order; the last one stays.

    :param root: an empty directory; the tool is in it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._said: dict[str, int] = {}
        script = root / "nvme"
        script.write_text(_SCRIPT.format(root=root))
        script.chmod(0o755)

    def says(self, command: str, stdout: str = "", stderr: str = "", rc: int = 0, hook: str = "") -> None:
        """Add an answer of *command*. *hook*: shell commands run before it is given."""
        number = self._said[command] = self._said.get(command, 0) + 1
        for suffix, text in (("out", stdout), ("err", stderr), ("rc", str(rc)), ("hook", hook)):
            if suffix != "hook" or text:
                (self.root / f"{command}.{number}.{suffix}").write_text(text)

    def forgets(self, command: str) -> None:
        """Take back the answers of *command*."""
        for number in range(1, self._said.pop(command, 0) + 1):
            for each in self.root.glob(f"{command}.{number}.*"):
                each.unlink()

    def replays(self, command: str, version: str, case: str) -> None:
        """Add what a real nvme-cli printed."""
        stdout, stderr, rc = ((SAMPLES / version / f"{case}.{suffix}").read_text() for suffix in ("out", "err", "rc"))
        self.says(command, stdout, stderr, int(rc))

    @property
    def calls(self) -> list[str]:
        """The command lines so far."""
        return (self.root / "calls").read_text().splitlines()

    @property
    def commands(self) -> list[str]:
        """Their first words."""
        return [call.split()[0] for call in self.calls]
