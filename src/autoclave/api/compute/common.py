"""Where the things of the compute API are."""

from collections.abc import Sequence
from typing import Any

import falcon

from autoclave.api.links import public_url
from autoclave.api.query import next_page

ROOT = "/compute/v2.1"


def links_to(req: falcon.Request, conf: Any, resource: str, key: str) -> list[dict[str, str]]:
    """The links of one thing."""
    return [{"rel": "self", "href": f"{public_url(req, conf)}{ROOT}/{resource}/{key}"}]


def next_link(req: falcon.Request, conf: Any, name: str, keys: Sequence[str]) -> dict[str, Any]:
    """What a page of a list says of the next one, ``{"servers_links": [...]}``; nothing if none follows.

    :param name: of the list.
    :param keys: of what the page has.
    """
    following = next_page(req, keys)
    if following is None:
        return {}
    return {f"{name}_links": [{"rel": "next", "href": f"{public_url(req, conf)}{req.path}?{following}"}]}
