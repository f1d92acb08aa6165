"""Rows of the compute half for tests; *values* say what matters to the test."""

import uuid
from typing import Any

from sqlalchemy.engine import Connection

from autoclave.db import flavors, images, instances
from autoclave.db.flavors import FlavorRecord
from autoclave.db.images import ImageRecord
from autoclave.db.instances import InstanceRecord
from autoclave.rules.instance_states import TaskState


def make_flavor(tx: Connection, **values: Any) -> FlavorRecord:
    """A small flavor."""
    row = {
        "flavorid": str(uuid.uuid4()),
        "name": f"flavor-{uuid.uuid4()}",
        "vcpus": 1,
        "ram": 512,
        "disk": 1,
        "ephemeral": 0,
        "swap": 0,
        "rxtx_factor": 1.0,
        "is_public": True,
        "extra_specs": {},
        **values,
    }
    flavors.insert(tx, row)
    found = flavors.get(tx, row["flavorid"])
    assert found is not None
    return found


def make_image(tx: Connection, **values: Any) -> ImageRecord:
    """An image of the project ``project`` whose data is there."""
    row = {
        "uuid": str(uuid.uuid4()),
        "name": "image",
        "status": images.ACTIVE,
        "owner": "project",
        "visibility": "shared",
        "disk_format": "raw",
        "container_format": "bare",
        "min_disk": 0,
        "min_ram": 0,
        "protected": False,
        "properties": {},
        **values,
    }
    images.insert(tx, row)
    found = images.get(tx, row["uuid"])
    assert found is not None
    return found


def make_instance(tx: Connection, **values: Any) -> InstanceRecord:
    """An instance of the project ``project`` that waits for the scheduler."""
    row = {
        "uuid": str(uuid.uuid4()),
        "name": "vm",
        "project_id": "project",
        "user_id": "user",
        "flavor": {
            "flavorid": "1",
            "name": "small",
            "vcpus": 1,
            "ram": 512,
            "disk": 1,
            "ephemeral": 0,
            "swap": 0,
            "extra_specs": {},
        },
        "image_uuid": str(uuid.uuid4()),
        "image": {"name": "image", "properties": {}},
        "metadata": {},
        "tags": [],
        "task_state": TaskState.SCHEDULING,
        **values,
    }
    instances.insert(tx, row)
    found = instances.get(tx, row["uuid"])
    assert found is not None
    return found
