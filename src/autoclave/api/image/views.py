"""What callers see of images."""

from typing import Any

from autoclave.db.images import ImageRecord


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
        "tags": image.tags,
        "created_at": image.created_at,
        "updated_at": image.updated_at or image.created_at,
        "self": f"/v2/images/{image.uuid}",
        "file": f"/v2/images/{image.uuid}/file",
        "schema": "/v2/schemas/image",
    }
