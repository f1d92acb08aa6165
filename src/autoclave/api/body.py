"""Read request bodies: JSON of a bounded size, validated against a schema before use."""

import json
import re
from collections.abc import Mapping
from typing import Any

import falcon
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from autoclave.exceptions import BadRequest
from autoclave.request_body import BodyTooLarge, RequestBody
from autoclave.rules import json_options

_JSON_TYPES = ("application/json", "application/json-patch+json")
_NUL = re.compile(r"(?<!\\)(\\\\)*\\u0000")
_NO_NUMBER = "invalid: it contains a number out of range"
_SHOWN = 300
_MAX_STORED = 60_000
"""Limit the bytes of JSON: MariaDB's TEXT holds 65,535."""


def compiled(schema: Mapping[str, Any]) -> Draft202012Validator:
    """Return a validator for *schema*; create it once, when its module is imported.

    :raises jsonschema.SchemaError: *schema* itself is wrong.
    """
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def read(
    req: falcon.Request, validator: Draft202012Validator, max_size: int, media_type: str = "application/json"
) -> Any:
    """Read, parse and validate the body of *req*.

    :param max_size: the largest number of bytes (``[api] max_request_body_size``).
    :param media_type: the media type to accept in addition to JSON and JSON patches.
    :raises BadRequest: it is missing or not whole, not JSON in UTF-8, or not what *validator* demands.
    :raises falcon.HTTPContentTooLarge: it is longer than *max_size*.
    :raises falcon.HTTPUnsupportedMediaType: it says that it is something else than JSON.
    """
    if req.content_type is not None and declared_type(req) not in (*_JSON_TYPES, media_type):
        taken = " or ".join(dict.fromkeys((media_type, "application/json")))
        raise falcon.HTTPUnsupportedMediaType(description=f"Send the body as Content-Type: {taken}.")
    try:
        raw = RequestBody(req.env).read_all(max_size)
    except BodyTooLarge as error:
        raise falcon.HTTPContentTooLarge(description=str(error)) from None
    if not raw:
        raise BadRequest("The request requires a JSON body.")
    document = _parsed(raw)
    check(document, validator)
    return document


def check(document: Any, validator: Draft202012Validator) -> None:
    """Validate *document*.

    :raises BadRequest: it is invalid; names the place and the requirement.
    """
    error = best_match(validator.iter_errors(document))
    if error is not None:
        where = "".join(f"[{part!r}]" if isinstance(part, str) else f"[{part}]" for part in error.absolute_path)
        message = error.schema.get("x-message", error.message) if isinstance(error.schema, dict) else error.message
        message = shortened(message)
        if "propertyNames" in error.absolute_schema_path:
            message = f"the key {shortened(repr(error.instance))} {message}"
        raise BadRequest(f"Invalid body{f' at {where}' if where else ''}: {message}")


def storable(value: Any, what: str) -> Any:
    """Return *value* if its JSON fits into a column.

    :param what: the name in the error.
    :raises BadRequest: it does not fit.
    """
    size = len(json.dumps(value))
    if size > _MAX_STORED:
        raise BadRequest(f"{what} would take {size} bytes; the maximum is {_MAX_STORED}.")
    return value


def read_if_any(
    req: falcon.Request, validator: Draft202012Validator, max_size: int, media_type: str = "application/json"
) -> Any:
    """Read the body as :func:`read`; return an empty mapping if there is none."""
    return read(req, validator, max_size, media_type) if RequestBody(req.env).announced != 0 else {}


def declared_type(req: falcon.Request) -> str:
    """Return the declared media type of *req*'s body; the empty string if there is none."""
    return (req.content_type or "").partition(";")[0].strip().lower()


def _parsed(raw: bytes) -> object:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body is not UTF-8: byte {error.start} cannot be decoded.") from None
    try:
        document = json_options.loads(text)
    except json_options.DuplicateKey as error:
        raise BadRequest(f"The body contains the key {shortened(repr(error.key))} twice.") from None
    except json_options.TooDeep as error:
        raise BadRequest(f"The body is {error}.") from None
    except ValueError as error:
        known = str(error).startswith("not ")
        raise BadRequest(f"The body is {shortened(str(error)) if known else _NO_NUMBER}.") from None
    try:
        # JSON can escape NUL and halves of surrogate pairs, but a database cannot store them. Nor NaN.
        written = json.dumps(document, ensure_ascii=False, allow_nan=False)
        written.encode()
        if _NUL.search(written):
            raise BadRequest("The body contains a NUL character.")
    except UnicodeEncodeError:
        raise BadRequest("The body contains half of a surrogate pair; encode its text as UTF-8.") from None
    except ValueError:
        raise BadRequest(f"The body is {_NO_NUMBER}.") from None
    return document


def shortened(message: str) -> str:
    """Shorten *message*, which may repeat the caller's text, to fit an answer."""
    return message if len(message) <= _SHOWN else f"{message[:_SHOWN]}…"
