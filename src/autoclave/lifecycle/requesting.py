"""Making the accelerator requests of a device profile."""

import uuid

from sqlalchemy.engine import Connection

from autoclave.db import arqs as arq_rows
from autoclave.db.profiles import ProfileRecord
from autoclave.rules.device_lifecycle import ARQState
from autoclave.rules.resource_request import counts


def make_arqs(
    tx: Connection, profile: ProfileRecord, project_id: str | None, instance_uuid: str | None = None
) -> list[str]:
    """Insert one ARQ for each device that *profile* asks for; their uuids, in the order of its groups.

    :param instance_uuid: whom they are for, if that is known before they are bound: it finds them again.

    The database refuses it (``DBReferenceError``) if the profile was deleted meanwhile.
    """
    made: list[str] = []
    for number, group in enumerate(profile.groups):
        for _ in range(sum(counts(group))):
            made.append(str(uuid.uuid4()))
            values = {
                "uuid": made[-1],
                "project_id": project_id,
                "instance_uuid": instance_uuid,
                "state": ARQState.INITIAL,
                "device_profile_id": profile.id,
                "device_profile_group_id": number,
            }
            arq_rows.insert(tx, values)
    return made
