"""Where the things of the compute API are."""

from typing import Any

import falcon

from autoclave.api.links import public_url

ROOT = "/compute/v2.1"


def links_to(req: falcon.Request, conf: Any, resource: str, key: str) -> list[dict[str, str]]:
    """The links of one thing."""
    return [{"rel": "self", "href": f"{public_url(req, conf)}{ROOT}/{resource}/{key}"}]
