"""Parse options whose values are JSON objects or lists of them.

The parser reports ambiguous input, such as a duplicate key, and never drops it silently.
"""

import difflib
import json
import re
from collections.abc import Iterator, Sequence

from autoclave.exceptions import InvalidConfiguration

MAX_DEPTH = 32
"""The most levels of nested objects and lists. Autoclave itself needs at most eight."""

_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]|[\]}]', re.DOTALL)
"""Matches a whole string, or one bracket."""


class TooDeep(ValueError):
    """Report objects and lists nested deeper than :data:`MAX_DEPTH`."""

    def __init__(self) -> None:
        super().__init__(f"nested more than {MAX_DEPTH} levels deep")


class DuplicateKey(ValueError):
    """Report a key that an object has twice; JSON parsers would silently keep the last value.

    :attr key: the key.
    """

    def __init__(self, key: str) -> None:
        super().__init__("given twice in one object; keep one of them")
        self.key = key


def loads(text: str) -> object:
    """Parse *text*.

    :raises TooDeep: it is nested deeper than :data:`MAX_DEPTH`.
    :raises DuplicateKey: an object, at any depth, has a key twice.
    :raises ValueError: it is not JSON; the message contains the position.
    """
    require_shallow(text)
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as e:
        raise ValueError(f"not JSON: {e.msg} at line {e.lineno} column {e.colno} of {text!r}") from None


def require_shallow(text: str) -> None:
    """Refuse JSON that is too deep for a recursive parser or a recursive function.

    :param text: may be invalid JSON: a parser stops at the first error.
    :raises TooDeep: it is nested deeper than :data:`MAX_DEPTH`.
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
    """Describe the JSON type and value of *value*, for a message about a wrong type."""
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
    """Parse a JSON boolean, or a string or number with the same meaning, ignoring case.

    :raises ValueError: *value* has no such meaning.
    """
    word = str(value).strip().lower() if isinstance(value, str | int) else ""  # bool is a subclass of int
    if word not in _YES | _NO:
        raise ValueError(
            f"must be true or false, or as a text one of yes, no, on, off, y, n, t, f, 1, 0; not {kind(value)}"
        )
    return word in _YES


def option_entries(values: Sequence[str], option: str) -> Iterator[tuple[int, object]]:
    """Yield each entry with its number, counted from 1 over all values.

    :param option: the option's name, for messages.
    :raises InvalidConfiguration: a value is not JSON, or an object has a key twice.
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
    """Return the message about a key that is not in *known*, with the closest match."""
    near = difflib.get_close_matches(key, known, n=1)
    guess = f"; did you mean {near[0]!r}?" if near else "."
    return f"unknown key{guess} The keys are {', '.join(known)}"
