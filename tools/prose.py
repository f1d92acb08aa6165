#!/usr/bin/env python3
"""Refuse phrases of tools/phrases.toml in prose, except those that tools/phrases-known.txt counts.

Prose is docstrings, comments, ``.rst`` and ``.md`` pages, and release notes. Code and literals are skipped.
A count may only fall: ``tools/prose.py --update`` lowers it.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PHRASES = ROOT / "tools" / "phrases.toml"
KNOWN = ROOT / "tools" / "phrases-known.txt"
_GAP = "\x00"
"""Replaces text that is no prose. It is no whitespace, so that no phrase continues across it."""
_LITERAL = re.compile(r"``[^`]+``|(?<![`:])`[^`<\n]+`(?![`_])")
_CODE_DIRECTIVE = re.compile(r"^( *)\.\. (?:code-block|literalinclude|sourcecode)::")
_NOTES = "releasenotes/notes/"


@dataclass(frozen=True)
class Phrase:
    """A pattern to refuse.

    :ivar context: a pattern; a hit that overlaps one of its matches is allowed.
    :ivar say: the words to use instead.
    :ivar first_line: search only the first line of docstrings.
    """

    pattern: re.Pattern[str]
    context: re.Pattern[str] | None
    say: str
    first_line: bool = False


@dataclass(frozen=True)
class Hit:
    """A refused phrase in a file."""

    line: int
    text: str
    say: str


def read_phrases(path: Path = PHRASES) -> list[Phrase]:
    """Return the phrases of a file."""
    entries = tomllib.loads(path.read_text())["phrase"]
    return [compile_phrase(entry) for entry in entries]


def compile_phrase(entry: Mapping[str, str]) -> Phrase:
    """Return the phrase of an entry of the file."""
    context = _spaced(entry["except"]) if "except" in entry else None
    return Phrase(_spaced(entry["pattern"]), context, entry["say"], entry.get("where") == "first line")


def _spaced(pattern: str) -> re.Pattern[str]:
    """Compile a pattern whose spaces match any whitespace."""
    return re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE)


def find(path: str, text: str, phrases: Sequence[Phrase]) -> list[Hit]:
    """Return every refused phrase in the prose of a file, by line."""
    prose, docstrings = extract(path, text)
    hits = []
    for phrase in phrases:
        if phrase.first_line:
            matches = [(at, match[0]) for at, first in docstrings if (match := phrase.pattern.match(first))]
        else:
            spans = [match.span() for match in phrase.context.finditer(prose)] if phrase.context else []
            matches = [
                (match.start(), match[0])
                for match in phrase.pattern.finditer(prose)
                if not any(begin < match.end() and match.start() < end for begin, end in spans)
            ]
        hits += [Hit(text.count("\n", 0, at) + 1, " ".join(said.split()), phrase.say) for at, said in matches]
    return sorted(hits, key=lambda hit: (hit.line, hit.text))


def extract(path: str, text: str) -> tuple[str, list[tuple[int, str]]]:
    """Return *text* with gaps in place of all that is no prose, and each docstring's first line with its offset."""
    docstrings: list[tuple[int, str]] = []
    if path.endswith(".py"):
        prose, docstrings = _python(text)
    elif path.endswith(".rst"):
        prose = _without_blocks(text)
    elif path.endswith(".md"):
        prose = _without_code(text)
    else:
        prose = text
    return _LITERAL.sub(lambda literal: _GAP * len(literal[0]), prose), docstrings


def _python(text: str) -> tuple[str, list[tuple[int, str]]]:
    """Keep docstrings and comments, at their offsets."""
    starts = {
        (node.lineno, node.col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    offsets = [0]
    for line in text.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    kept = [char if char.isspace() else _GAP for char in text]
    firsts = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        begin = offsets[token.start[0] - 1] + token.start[1]
        if token.type == tokenize.COMMENT:
            kept[begin : begin + len(token.string)] = token.string.replace("#", " ")
        elif token.type == tokenize.STRING and token.start in starts:
            kept[begin : begin + len(token.string)] = token.string
            firsts.append((begin, token.string.lstrip("rRuU").strip("\"'").split("\n", 1)[0].strip()))
    return "".join(kept), firsts


def _without_blocks(text: str) -> str:
    """Replace the code blocks of a reStructuredText page with gaps."""
    lines = []
    block: int | None = None
    for line in text.splitlines(keepends=True):
        indent = len(line) - len(line.lstrip(" "))
        if block is not None and line.strip() and indent <= block:
            block = None
        lines.append(line if block is None else re.sub(r"\S", _GAP, line))
        if block is None and (_CODE_DIRECTIVE.match(line) or line.rstrip().endswith("::")):
            block = indent
    return "".join(lines)


def _without_code(text: str) -> str:
    """Replace the fenced and indented code of a Markdown page with gaps."""
    lines = []
    fenced = False
    for line in text.splitlines(keepends=True):
        fence = line.lstrip().startswith("```")
        code = fenced or fence or line.startswith("    ")
        fenced ^= fence
        lines.append(re.sub(r"\S", _GAP, line) if code else line)
    return "".join(lines)


def files(root: Path) -> Iterator[str]:
    """Yield the files with prose: tracked ones, and new ones that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    for path in sorted(set(listed.stdout.splitlines())):
        if (path.endswith((".py", ".rst", ".md")) or path.startswith(_NOTES)) and (root / path).is_file():
            yield path


def read_known(path: Path) -> dict[str, int]:
    """Return the known number of refused phrases by file; empty if there is no such file."""
    if not path.exists():
        return {}
    lines = (line.split(maxsplit=1) for line in path.read_text().splitlines() if not line.startswith("#"))
    return {name: int(count) for count, name in lines}


def write_known(path: Path, counts: Mapping[str, int]) -> None:
    """Write the known number of refused phrases by file."""
    head = "# Refused phrases that old text still has, by file. Lower it with `tools/prose.py --update`.\n"
    body = "".join(f"{count} {name}\n" for name, count in sorted(counts.items()) if count)
    path.write_text(head + body)


def check(root: Path, phrases: Sequence[Phrase], known_file: Path, *, update: bool) -> list[str]:
    """Return a line for every refused phrase in a file that has more of them than known.

    :param update: lower the known counts, or create them if there is no such file.
    """
    found = {name: find(name, (root / name).read_text(), phrases) for name in files(root)}
    creating = update and not known_file.exists()
    known = {name: len(hits) for name, hits in found.items()} if creating else read_known(known_file)
    if update:
        write_known(known_file, {name: min(count, len(found.get(name, ()))) for name, count in known.items()})
    lines = []
    for name, hits in found.items():
        if len(hits) > known.get(name, 0):
            lines.append(f"{name}: {len(hits)} refused phrases, {known.get(name, 0)} known")
            lines += [f"{name}:{hit.line}: {hit.text!r}: say {hit.say}" for hit in hits]
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Check the prose of this checkout. Return 1 if a file has more refused phrases than known."""
    parser = argparse.ArgumentParser(description="Refuse phrases of tools/phrases.toml in prose.")
    parser.add_argument("--update", action="store_true", help="lower the known counts to what is found")
    parser.add_argument("--list", metavar="FILE", help="list every refused phrase of a file, known ones included")
    arguments = parser.parse_args(argv)
    phrases = read_phrases()
    if arguments.list:
        hits = find(arguments.list, Path(arguments.list).read_text(), phrases)
        lines = [f"{arguments.list}:{hit.line}: {hit.text!r}: say {hit.say}" for hit in hits]
        status = 0
    else:
        lines = check(ROOT, phrases, KNOWN, update=arguments.update)
        status = 1 if lines else 0
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return status


if __name__ == "__main__":
    sys.exit(main())
