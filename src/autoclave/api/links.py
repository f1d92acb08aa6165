"""Links."""

from typing import Any

import falcon


def public_url(req: falcon.Request, conf: Any) -> str:
    """Where this service is, for the caller of *req*: ``[api] public_endpoint``, or the host that was asked."""
    endpoint: str | None = conf.api.public_endpoint
    return endpoint.rstrip("/") if endpoint else f"{req.scheme}://{req.netloc}"


def resource_link(base: str, resource: str) -> str:
    """Where the rows of *resource* are, each by its uuid: at the path that clients of Cyborg know, mounted or not."""
    return f"{base}/accelerator/v2/{resource}/"


def self_link(base: str, resource: str, uuid: str) -> dict[str, str]:
    """The link of one row."""
    return {"href": resource_link(base, resource) + uuid, "rel": "self"}
