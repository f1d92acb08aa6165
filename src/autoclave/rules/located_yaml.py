"""Parse the YAML of an operator's file, with the line of every value.

libyaml reads it through PyYAML's safe loader. In addition, duplicate keys are faults. Aliases and merges are limited,
so that a small file cannot expand without end.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml

Path = tuple[str | int, ...]
"""The location of a value: the keys and list positions (counted from 0) that lead to it."""

MAX_DEPTH = 50
"""The most levels of nested collections. The format itself has seven."""

MAX_VALUES = 200_000
"""The most values in one file, counting those of each alias again. A file of 1 MiB without aliases needs no more."""

MAX_TWICE = 101
"""The most duplicate keys reported for one file."""

_MAX_BITS = 1000
"""The most bits of an integer: Python refuses to convert much larger ones into a float or a string."""

_MERGE_TAG = "tag:yaml.org,2002:merge"
_TAGS = {yaml.MappingNode: "tag:yaml.org,2002:map", yaml.SequenceNode: "tag:yaml.org,2002:seq"}
_PLAIN_KEY = re.compile(r"[\w$-]{1,255}", re.ASCII)


class Found(NamedTuple):
    """Locate a message in the text.

    :param line: counted from 1.
    """

    line: int
    path: Path
    message: str


class Unreadable(Exception):
    """Report text that is not usable YAML.

    :attr found: the reason and its location.
    """

    def __init__(self, line: int, message: str, path: Path = ()) -> None:
        super().__init__(message)
        self.found = Found(line, path, message)


class Empty(Unreadable):
    """Report text without a document: empty, or comments only."""


@dataclass(slots=True)  # not frozen: a file has a hundred thousand, and frozen ones take four times as long
class Located:
    """Hold one value of the text.

    :param value: the value in Python: a dict with keys of type str, a list, or a scalar.
    :param line: the line where it begins, counted from 1. For the value of a key, it is the line of the key.
    :param text: the source text of a scalar.
    :param children: the members of a collection, by key or position.
    :param size: the number of values in it, including itself.
    """

    value: Any
    line: int
    text: str
    children: Mapping[str | int, "Located"]
    size: int = 1

    def at(self, path: Path) -> "Located":
        """Return the value at *path*, or else its innermost existing ancestor."""
        here = self
        for step in path:
            if step not in here.children:
                break
            here = here.children[step]
        return here


def read(text: str) -> tuple[Located, list[Found]]:
    """Parse the one document in *text*; also return its duplicate keys, of which the first is used.

    :raises Unreadable: the text is empty, is not YAML, or cannot be used as a whole.
    """
    try:
        loader = yaml.CSafeLoader(text)
        try:
            root = loader.get_single_node()
            if root is None:
                raise Empty(1, "is empty")
            reader = _Reader(loader)
            return reader.read(root), reader.twice
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        said = ", ".join(part for part in (e.context, e.problem) if part)
        lines = len(text.splitlines()) or 1  # libyaml counts one more line, after the end
        raise Unreadable(min(mark.line + 1, lines) if mark else 1, f"not YAML: {said}") from None
    except yaml.reader.ReaderError as e:
        line = text.encode()[: e.position].count(b"\n") + 1
        raise Unreadable(line, f"not YAML: {e.reason}") from None
    except UnicodeEncodeError as e:
        raise Unreadable(text.count("\n", 0, e.start) + 1, "not YAML: half of a surrogate pair") from None


def shown(path: Path) -> str:
    """Format *path* in one line, such as ``providers[0].identification.uuid``; empty for the whole document."""
    steps = (
        f"[{step}]" if isinstance(step, int) else f".{step}" if _PLAIN_KEY.fullmatch(step) else f"[{quoted(step)}]"
        for step in path
    )
    return "".join(steps).removeprefix(".")


def quoted(text: str) -> str:
    """Quote *text* in one line, shortened to at most 80 characters."""
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


_STRING = "tag:yaml.org,2002:str"
_NONE: Mapping[str | int, Located] = {}


class _Reader:
    """Convert the nodes of one document into values. Collections that aliases refer to are converted once.

    :ivar twice: the first :data:`MAX_TWICE` duplicate keys.
    """

    def __init__(self, loader: yaml.CSafeLoader) -> None:
        self._loader = loader
        self._read: dict[yaml.Node, Located] = {}
        self._open: set[yaml.Node] = set()
        self._path: list[str | int] = []
        self._merged = 0
        self.twice: list[Found] = []

    def read(self, node: yaml.Node) -> Located:
        """Convert *node* into a value.

        :raises Unreadable: the value cannot be used.
        """
        line: int = node.start_mark.line + 1
        if isinstance(node, yaml.ScalarNode):
            text: str = node.value
            return Located(text if node.tag == _STRING else self._scalar(node, line), line, text, _NONE)
        if node in self._read:
            return self._read[node]
        if node in self._open:
            raise self._unreadable(line, "refers to itself by an alias")
        if len(self._open) > MAX_DEPTH:
            raise self._unreadable(line, f"more than {MAX_DEPTH} collections within each other")
        self._open.add(node)
        done = self._collection(node, line)
        self._open.remove(node)
        self._read[node] = done
        return done

    def _unreadable(self, line: int, message: str) -> Unreadable:
        return Unreadable(line, message, tuple(self._path))

    def _at(self, step: str | int, node: yaml.Node) -> Located:
        self._path.append(step)
        found = self.read(node)
        self._path.pop()
        return found

    def _scalar(self, node: yaml.ScalarNode, line: int) -> Any:
        try:
            value = self._loader.construct_object(node, deep=True)
        except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, ValueError):
            # PyYAML's constructors raise all of these for a text that does not fit its tag
            kind = node.tag.removeprefix("tag:yaml.org,2002:")
            raise self._unreadable(
                line, f"{quoted(node.value)} cannot be read as the YAML type {quoted(kind)}"
            ) from None
        if isinstance(value, int) and value.bit_length() > _MAX_BITS:
            raise self._unreadable(line, f"{quoted(node.value)} is too large a number")
        return value

    def _collection(self, node: yaml.CollectionNode, line: int) -> Located:
        if node.tag != _TAGS[type(node)]:
            raise self._unreadable(line, f"the tag {quoted(node.tag)} has no meaning here")
        children: dict[str | int, Located] = {}
        if isinstance(node, yaml.MappingNode):
            children.update(self._mapping(node))
            value: Any = {key: child.value for key, child in children.items()}
        else:
            for at, item in enumerate(node.value):
                children[at] = self._at(at, item)
            value = [child.value for child in children.values()]
        size = 1 + sum([child.size for child in children.values()])
        if size > MAX_VALUES:
            raise self._unreadable(line, f"stands for more than {MAX_VALUES} values; use fewer aliases")
        return Located(value, line, "", children, size)

    def _mapping(self, node: yaml.MappingNode) -> Mapping[str, Located]:
        own: dict[str, Located] = {}
        merged: dict[str | int, Located] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._unreadable(line, "a key must be a text, not a collection")
            key = key_node.value
            if key_node.tag == _MERGE_TAG:
                for base in self._bases(value_node, line):
                    for name, child in base.children.items():
                        merged.setdefault(name, child)
            elif key in own:
                if len(self.twice) < MAX_TWICE:
                    message = f"given twice in one mapping, first in line {own[key].line}; keep one of them"
                    self.twice.append(Found(line, (*self._path, key), message))
            else:
                child = self._at(key, value_node)
                if child.line != line:
                    child = Located(child.value, line, child.text, child.children, child.size)
                own[key] = child
        return {**merged, **own} if merged else own  # type: ignore[dict-item]  # only mappings are merged

    def _bases(self, node: yaml.Node, line: int) -> Iterator[Located]:
        """Yield the mappings that a merge key refers to, the one with the highest precedence first.

        The cost of a merge is counted before the merge: a few kilobytes of aliases can refer to millions of keys.
        """
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for each in nodes:
            if not isinstance(each, yaml.MappingNode):
                raise self._unreadable(line, "what << names must be a mapping or a list of mappings")
            base = self.read(each)
            self._merged += 1 + len(base.children)
            if self._merged > MAX_VALUES:
                raise self._unreadable(line, f"<< names more than {MAX_VALUES} values; use fewer aliases")
            yield base
