"""The command line of nvme-cli, as each version takes it.

It is parsed by getopt_long_only, which takes ``-o`` for the beginning of a long option where there is
no such short one; that is how ``-o json`` becomes an error in some commands of some versions.
"""

from collections.abc import Sequence

from autoclave.simulator.nvme_dialect import Dialect

# name:letter is a flag, name=letter takes a value. What no agent needs is left out.
_OPTIONS = {
    "id-ctrl": "vendor-specific:V raw-binary:b human-readable:H",
    "id-ns": "namespace-id=n force: vendor-specific:V raw-binary:b human-readable:H",
    "list-ns": "namespace-id=n csi=y all:a",
    "id-ns-granularity": "",
    "sanitize": "no-dealloc:d oipbp:i owpass=n ause:u sanact=a ovrpat=p",
    "sanitize-log": "rae:r human-readable:H raw-binary:b",
    "create-ns": "nsze=s ncap=c flbas=f dps=d nmic=m anagrp-id=a nvmset-id=i block-size=b timeout=t csi=y",
    "format": "namespace-id=n timeout=t lbaf=l ses=s pi=i pil=p ms=m reset:r force: block-size=b",
    "delete-ns": "namespace-id=n timeout=t",
    "attach-ns": "namespace-id=n controllers=c",
    "detach-ns": "namespace-id=n controllers=c",
    "ns-rescan": "",
    "write-zeroes": "namespace-id=n start-block=s block-count=c dir-type=T deac:d limited-retry:l "
    "force-unit-access:f prinfo=p",
}
_REPORTS = frozenset({"id-ctrl", "id-ns", "id-ns-granularity", "list-ns", "sanitize-log"})


class UsageError(Exception):
    """The command line cannot be parsed. ``str()`` of it is nvme-cli's own message."""


class Options:
    """The parsed options of one command.

    :param values: by long name; a flag has an empty one.
    :param arguments: what is no option.
    """

    def __init__(self, values: dict[str, str], arguments: list[str]) -> None:
        self._values = values
        self.arguments = arguments

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def number(self, name: str, bits: int = 32) -> int | None:
        """The value of *name*, or None if it is not given.

        :raises UsageError: it is no number of so many bits.
        """
        text = self._values.get(name)
        if text is None:
            return None
        try:
            value = int(text, 0)
        except ValueError:
            value = -1
        if not 0 <= value < 1 << bits:
            kind = {8: "byte", 16: "short", 32: "word", 64: "long suffixed"}[bits]
            raise UsageError(f"Expected {kind} argument for '{name}' but got '{text}'!")
        return value

    @property
    def as_json(self) -> bool:
        """The answer is to be JSON."""
        return self._values.get("output-format") == "json"


def parse(dialect: Dialect, command: str, argv: Sequence[str]) -> Options:
    """Parse what follows *command*.

    :raises UsageError: an option is not known, ambiguous, or lacks its value.
    """
    known = _known(dialect, command)
    by_letter = {letter: name for name, (letter, _) in known.items() if letter}
    values: dict[str, str] = {}
    arguments: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            arguments.append(word)
            continue
        value: str | None
        if not word.startswith("--") and word[1] in by_letter and word[1:].partition("=")[0] not in known:
            name, value = by_letter[word[1]], word[2:] or None
        else:
            dashes = "--" if word.startswith("--") else "-"
            written, equals, text = word[len(dashes) :].partition("=")
            name, value = _complete(command, dashes, written, known), text if equals else None
        takes_value = known[name][1]
        if takes_value and value is None:
            if not rest:
                raise UsageError(f"{command}: option requires an argument -- '{name}'")
            value = rest.pop(0)
        values[name] = value or ""
    return Options(values, arguments)


def _known(dialect: Dialect, command: str) -> dict[str, tuple[str, bool]]:
    """(letter, takes a value) by long name."""
    table = _OPTIONS[command]
    if dialect.version >= (2, 11) and command == "sanitize":
        table += " emvs:e"
    if dialect.version >= (2, 13) and command == "write-zeroes":
        table += " namespace-zeroes:Z"
    if dialect.version >= (3, 0):
        table = table.replace(" timeout=t", "") + " timeout= quiet: dry-run: no-retries:"
        if command == "sanitize":
            table += " ish:I wait:w repeat:r"
    elif dialect.version >= (2, 11) and "timeout" not in table:
        table += " timeout=t"
    if command in _REPORTS or dialect.version >= (2, 6):
        table += " output-format=o verbose:v"
    known = {}
    for entry in table.split():
        takes_value = "=" in entry
        name, _, letter = entry.partition("=" if takes_value else ":")
        known[name] = (letter, takes_value)
    return known


def _complete(command: str, dashes: str, written: str, known: dict[str, tuple[str, bool]]) -> str:
    if written in known:
        return written
    possible = [name for name in known if name.startswith(written)]
    if len(possible) == 1:
        return possible[0]
    if possible:
        names = " ".join(f"'{dashes}{name}'" for name in possible)
        raise UsageError(f"{command}: option '{dashes}{written}' is ambiguous; possibilities: {names}")
    raise UsageError(f"{command}: unrecognized option '{dashes}{written}'")
