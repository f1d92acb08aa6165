"""Parse options whose values are JSON objects or lists of them.

The entries of an option that may be given several times, each value a JSON object or a list of them.

JSON as an operator writes it into an option: nothing in it may be lost without a word.
"""

import difflib
import json
import re
from collections.abc import Iterator, Sequence

from autoclave.exceptions import InvalidConfiguration

MAX_DEPTH = 32
"""Levels of objects and lists within each other. What this service takes or writes has eight at most."""

_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]|[\]}]', re.DOTALL)
"""A string as a whole, or a bracket."""


class TooDeep(ValueError):
    """Objects and lists stand deeper within each other than :data:`MAX_DEPTH`."""

    def __init__(self) -> None:
        super().__init__(f"nested more than {MAX_DEPTH} levels deep")


class DuplicateKey(ValueError):
    """An object names a key twice; JSON would silently keep the last.

    :attr key: the key.
    """

    def __init__(self, key: str) -> None:
        super().__init__("given twice in one object; keep one of them")
        self.key = key


def loads(text: str) -> object:
    """Parse *text*.

    :raises TooDeep:
    :raises DuplicateKey: an object, at any depth, names a key twice.
    :raises ValueError: it is not JSON; the message says where.
    """
    require_shallow(text)
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as e:
        raise ValueError(f"not JSON: {e.msg} at line {e.lineno} column {e.colno} of {text!r}") from None


def require_shallow(text: str) -> None:
    """Refuse JSON that a parser, or a function that walks through what it has parsed, could not follow to its end.

    :param text: need not be sound JSON; a parser stops where that ends.
    :raises TooDeep:
    """
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for token in _TOKENS.finditer(text):
        first = text[token.start()]
        if first in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise TooDeep
        elif first in "]}":
            depth -= 1


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise DuplicateKey(key)
        result[key] = value
    return result


def kind(value: object) -> str:
    """What JSON calls *value*, for a message that says it is of the wrong type."""
    match value:
        case None:
            return "null"
        case bool():
            return f"the boolean {str(value).lower()}"
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the string {json.dumps(value)}"
        case list():
            return "a list"
        case _:
            return "an object"


_YES = frozenset({"1", "on", "t", "true", "y", "yes"})
_NO = frozenset({"0", "off", "f", "false", "n", "no"})


def boolean(value: object) -> bool:
    """The meaning of a JSON boolean, or of a text or number that says the same, in upper or lower case.

    :raises ValueError: *value* is neither.
    """
    word = str(value).strip().lower() if isinstance(value, str | int) else ""  # a bool is an int, too
    if word not in _YES | _NO:
        raise ValueError(
            f"must be true or false, or as a text one of yes, no, on, off, y, n, t, f, 1, 0; not {kind(value)}"
        )
    return word in _YES


def option_entries(values: Sequence[str], option: str) -> Iterator[tuple[int, object]]:
    """Each entry with its number, counted from 1 over all values.

    :param option: the option's name, for messages.
    :raises InvalidConfiguration: a value is no JSON, or one of its objects names a key twice.
    """
    number = 0
    for value in values:
        try:
            parsed = loads(value)
        except DuplicateKey as e:
            raise InvalidConfiguration(f"{e}: {value}", option=option, entry=number + 1, key=e.key) from None
        except ValueError as e:
            raise InvalidConfiguration(str(e), option=option, entry=number + 1) from None
        for raw in parsed if isinstance(parsed, list) else [parsed]:
            number += 1
            yield number, raw


def unknown_key(key: str, known: Sequence[str]) -> str:
    """What to say of a key that is none of *known*."""
    near = difflib.get_close_matches(key, known, n=1)
    guess = f"; did you mean {near[0]!r}?" if near else "."
    return f"unknown key{guess} The keys are {', '.join(known)}"
