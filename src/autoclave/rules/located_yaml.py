"""YAML as an operator writes it into a file: every value knows its line, and nothing is lost without a word.

Read by libyaml through PyYAML's safe loader. Beyond that, a key given twice is a fault, and so are the ways in which a
small file could stand for an endless one.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml

Path = tuple[str | int, ...]
"""Where a value is: the keys and list positions (counted from 0) that lead to it."""

MAX_DEPTH = 50
"""Levels of collections within each other. The format itself has seven."""

MAX_VALUES = 200_000
"""Values in one file, those behind each alias counted anew: a file of 1 MiB that uses none has no reason for more."""

MAX_TWICE = 101
"""Keys given twice that are told of one file."""

_MAX_BITS = 1000
"""Of an integer: Python converts no much larger one into a float or a text."""

_MERGE_TAG = "tag:yaml.org,2002:merge"
_TAGS = {yaml.MappingNode: "tag:yaml.org,2002:map", yaml.SequenceNode: "tag:yaml.org,2002:seq"}
_PLAIN_KEY = re.compile(r"[\w$-]{1,255}", re.ASCII)


class Found(NamedTuple):
    """Something to say of a place in the text.

    :param line: counted from 1.
    """

    line: int
    path: Path
    message: str


class Unreadable(Exception):
    """The text is not YAML that can be used; nothing of it is known.

    :attr found: why, and where.
    """

    def __init__(self, line: int, message: str, path: Path = ()) -> None:
        super().__init__(message)
        self.found = Found(line, path, message)


class Empty(Unreadable):
    """The text has no document: nothing, or only comments."""


@dataclass(slots=True)  # not frozen: a file has a hundred thousand of them, and those take four times as long
class Located:
    """A value of the text.

    :param value: what it is in Python: dict (its keys are texts), list, or a scalar.
    :param line: where it begins, counted from 1; behind a key, the line of the key.
    :param text: a scalar as it is written.
    :param children: what a collection holds, by key or position.
    :param size: how many values it stands for, itself included.
    """

    value: Any
    line: int
    text: str
    children: Mapping[str | int, "Located"]
    size: int = 1

    def at(self, path: Path) -> "Located":
        """The value at *path*, or the innermost around it that exists."""
        here = self
        for step in path:
            if step not in here.children:
                break
            here = here.children[step]
        return here


def read(text: str) -> tuple[Located, list[Found]]:
    """The one document in *text*, and every key that is given twice in it (the first counts).

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
        lines = len(text.splitlines()) or 1  # libyaml has one more, behind the end
        raise Unreadable(min(mark.line + 1, lines) if mark else 1, f"not YAML: {said}") from None
    except yaml.reader.ReaderError as e:
        line = text.encode()[: e.position].count(b"\n") + 1
        raise Unreadable(line, f"not YAML: {e.reason}") from None
    except UnicodeEncodeError as e:
        raise Unreadable(text.count("\n", 0, e.start) + 1, "not YAML: half of a surrogate pair") from None


def shown(path: Path) -> str:
    """*path* in one line, such as ``providers[0].identification.uuid``; empty for the whole document."""
    steps = (
        f"[{step}]" if isinstance(step, int) else f".{step}" if _PLAIN_KEY.fullmatch(step) else f"[{quoted(step)}]"
        for step in path
    )
    return "".join(steps).removeprefix(".")


def quoted(text: str) -> str:
    """*text* in quotes and in one short line, whatever it is."""
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


_STRING = "tag:yaml.org,2002:str"
_NONE: Mapping[str | int, Located] = {}


class _Reader:
    """Makes values of the nodes of one document. A collection that aliases name again is read once.

    :ivar twice: keys that were found a second time in their mapping, the first :data:`MAX_TWICE` of them.
    """

    def __init__(self, loader: yaml.CSafeLoader) -> None:
        self._loader = loader
        self._read: dict[yaml.Node, Located] = {}
        self._open: set[yaml.Node] = set()
        self._path: list[str | int] = []
        self._merged = 0
        self.twice: list[Found] = []

    def read(self, node: yaml.Node) -> Located:
        """The value of *node*.

        :raises Unreadable: it cannot be used.
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
        """The mappings that a merge key names; what an earlier one has, counts.

        What a merge costs is counted before it is done: a few kilobytes of aliases can name millions of keys.
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
