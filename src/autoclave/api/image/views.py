"""What callers see of images."""

from collections.abc import Sequence
from typing import Any

import falcon

from autoclave.api.query import next_page
from autoclave.db.images import ImageRecord

_ROOT = "/v2/images"
"""As Glance writes it: from where its versions begin."""


def shown(image: ImageRecord) -> dict[str, Any]:
    """An image as Glance shows it: its free properties stand beside all else."""
    return {
        **image.properties,
        "id": image.uuid,
        "name": image.name,
        "status": image.status,
        "visibility": image.visibility,
        "owner": image.owner,
        "disk_format": image.disk_format,
        "container_format": image.container_format,
        "min_disk": image.min_disk,
        "min_ram": image.min_ram,
        "protected": image.protected,
        "size": image.size,
        "virtual_size": None,
        "checksum": image.checksum,
        "os_hash_algo": "sha512" if image.os_hash_value else None,
        "os_hash_value": image.os_hash_value,
        "os_hidden": False,
        "tags": [],
        "created_at": image.created_at,
        "updated_at": image.updated_at or image.created_at,
        "self": f"{_ROOT}/{image.uuid}",
        "file": f"{_ROOT}/{image.uuid}/file",
        "schema": "/v2/schemas/image",
    }


def shown_list(req: falcon.Request, images: Sequence[ImageRecord]) -> dict[str, Any]:
    """The images that *req* asked for, and where those are that follow."""
    answer: dict[str, Any] = {"images": [shown(image) for image in images]}
    following = next_page(req, [image.uuid for image in images])
    return answer if following is None else {**answer, "next": f"{_ROOT}?{following}"}
