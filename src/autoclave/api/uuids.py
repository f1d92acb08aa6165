"""UUIDs as callers write them."""

import re

from autoclave.exceptions import BadRequest

_CANONICAL = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)


def canonical(text: str) -> str | None:
    """*text* in lower case, as every row keeps it; None if it is no uuid."""
    return text.lower() if _CANONICAL.fullmatch(text) else None


def require(text: str, name: str) -> str:
    """:func:`canonical`, for what must be a uuid.

    :raises BadRequest: *text* is none; *name* says what it was meant for.
    """
    found = canonical(text)
    if found is None:
        raise BadRequest(f"Expected a uuid for {name} but received {text!r}.")
    return found
