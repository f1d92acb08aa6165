"""Answers as JSON, quickly: lists of ten thousand rows are made of them."""

from functools import partial
from typing import Any

import falcon
import orjson
from falcon.media import JSONHandler

# Moments are UTC without a zone, as the database keeps them; clients know them in whole seconds, with the zone.
_OPTIONS = orjson.OPT_NAIVE_UTC | orjson.OPT_OMIT_MICROSECONDS


def install(app: "falcon.App[Any, Any]") -> None:
    """Make *app* write its media this way; datetimes in them become ISO 8601, such as ``2026-11-28T09:00:18+00:00``."""
    handler = JSONHandler(dumps=partial(orjson.dumps, option=_OPTIONS))
    app.resp_options.media_handlers[falcon.MEDIA_JSON] = handler
