"""The entries of an option that may be given several times, each value a JSON object or a list of them."""

import difflib
from collections.abc import Iterator, Sequence

from autoclave.exceptions import InvalidConfiguration
from autoclave.rules import strict_json


def option_entries(values: Sequence[str], option: str) -> Iterator[tuple[int, object]]:
    """Each entry with its number, counted from 1 over all values.

    :param option: the option's name, for messages.
    :raises InvalidConfiguration: a value is no JSON, or one of its objects names a key twice.
    """
    number = 0
    for value in values:
        try:
            parsed = strict_json.loads(value)
        except strict_json.DuplicateKey as e:
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
