"""Parse query strings and UUIDs, and make links.

An unknown argument is refused, so that a filter with a typo does not return everything.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

import falcon

from autoclave.api import body
from autoclave.api.schema import TEXT
from autoclave.exceptions import BadRequest

_WHOLE_NUMBER = re.compile(r"-?\d{1,18}", re.ASCII)
MAX_LIMIT = 1_000_000


class Argument:
    """Describe one argument of a query string.

    :param meaning: a sentence for the document.
    :param schema: what its value must satisfy; its ``x-message`` completes "The argument …".
    :param repeated: it may be given several times; ``req.get_param_as_list`` has its values.
    """

    def __init__(
        self,
        name: str,
        meaning: str,
        schema: Mapping[str, Any] = TEXT,
        *,
        required: bool = False,
        repeated: bool = False,
    ) -> None:
        self.name = name
        self.meaning = meaning
        self.schema = schema
        self.required = required
        self.repeated = repeated
        self._validator = body.compiled(schema)
        self._refusal = f'The argument "{name}" {schema["x-message"]}'

    def check(self, text: str) -> None:
        """Refuse *text* as the value.

        :raises BadRequest: the schema does not take it.
        """
        whole = self.schema.get("type") == "integer" and _WHOLE_NUMBER.fullmatch(text)
        if not self._validator.is_valid(int(text) if whole else text):
            raise BadRequest(f"{self._refusal}, not {body.shortened(repr(text))}.")


def limit(least: int, meaning: str) -> Argument:
    """Define the argument that limits the number of rows.

    :param least: the smallest number.
    """
    return Argument(
        "limit",
        meaning,
        {
            "type": "integer",
            "minimum": least,
            "maximum": MAX_LIMIT,
            "x-message": f"must be a whole number from {least} to {MAX_LIMIT}",
        },
    )


LIMIT = limit(1, "Maximum number of rows; all by default.")
MARKER = Argument("marker", "UUID of the last row of the previous page.")
PAGING = (LIMIT, MARKER)


@dataclass(frozen=True)
class Page:
    """Describe a part of a list.

    :param limit: rows at most; None: all of them.
    :param marker: the uuid of the last row of the previous part.
    """

    limit: int | None
    marker: str | None


def arguments(req: falcon.Request, declared: Iterable[Argument]) -> dict[str, str]:
    """Return the arguments of the query string by name, except the repeated ones.

    :raises BadRequest: an argument is not *declared*, is repeated, is missing, or has an invalid value.
    """
    known = {argument.name: argument for argument in declared}
    found: dict[str, str] = {}
    for name, value in req.params.items():
        if name not in known:
            possible = ", ".join(sorted(known)) or "none"
            raise BadRequest(f'Unknown argument: "{body.shortened(name)}". Possible: {possible}.')
        values = [value] if isinstance(value, str) else value
        if len(values) > 1 and not known[name].repeated:
            raise BadRequest(f'The argument "{name}" is given more than once.')
        for text in values:
            known[name].check(text)
        if not known[name].repeated:
            [found[name]] = values
    for argument in known.values():
        if argument.required and argument.name not in found:
            raise BadRequest(f'The argument "{argument.name}" is missing. {argument.meaning}')
    return found


def page(values: Mapping[str, str]) -> Page:
    """Return ``limit`` and ``marker`` of *values*, which :func:`arguments` has checked."""
    most = values.get("limit")
    return Page(None if most is None else int(most), values.get("marker"))


def next_page(req: falcon.Request, keys: Sequence[str]) -> str | None:
    """Return the query string of the next page; None if *req* asks for no page, or the page is not full.

    :param keys: of the rows of the page. A full last page links to an empty one.
    """
    limit = req.get_param_as_int("limit")
    if not limit or len(keys) < limit:
        return None
    asked = parse_qsl(req.query_string, keep_blank_values=True)
    return urlencode([*(pair for pair in asked if pair[0] != MARKER.name), (MARKER.name, keys[-1])])


def unknown_marker(marker: str) -> BadRequest:
    """Return the error for a marker without a row."""
    return BadRequest(f'The argument "marker" names no visible row: {body.shortened(marker)}')


_CANONICAL = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)


def canonical(text: str) -> str | None:
    """Return *text* in lower case, as rows store it; None if it is no uuid."""
    return text.lower() if _CANONICAL.fullmatch(text) else None


def require(text: str, name: str) -> str:
    """Return *text* as :func:`canonical`, but require a uuid.

    :raises BadRequest: *text* is no uuid; *name* is its name in the error.
    """
    found = canonical(text)
    if found is None:
        raise BadRequest(f"Expected a uuid for {name} but received {text!r}.")
    return found


def public_url(req: falcon.Request, conf: Any) -> str:
    """Return the URL of this service for the caller of *req*: ``[api] public_endpoint``, or the requested host."""
    endpoint: str | None = conf.api.public_endpoint
    return endpoint.rstrip("/") if endpoint else f"{req.scheme}://{req.netloc}"


def resource_link(base: str, resource: str) -> str:
    """Return the URL of the rows of *resource*: at Cyborg's path, mounted or not."""
    return f"{base}/accelerator/v2/{resource}/"


def self_link(base: str, resource: str, uuid: str) -> dict[str, str]:
    """Return the link of one row."""
    return {"href": resource_link(base, resource) + uuid, "rel": "self"}
