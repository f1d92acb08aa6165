"""Record in the history of devices which guests they served.

Only administrators may read this history. It covers devices that instances have by accelerator requests.
"""

from dataclasses import replace

from sqlalchemy.engine import Connection

from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db import history
from autoclave.db.instances import InstanceRecord
from autoclave.lifecycle.transitions import Cause, remark
from autoclave.rules.device_lifecycle import ACTIVE


def of_instance(
    cause: Cause, what: str, *, instance_uuid: str | None, project_id: str | None, user_id: str | None
) -> Cause:
    """Return *cause* with the instance, its project and the user, in the reason and in the evidence.

    :param what: the operation, such as ``bound to``.
    :param user_id: the user that requested it; None for a sweep.
    """
    user = f", by user {user_id}" if user_id else ""
    reason = f"{what} instance {instance_uuid or 'unknown'} of project {project_id or 'unknown'}{user}"
    tenant = {"instance_uuid": instance_uuid, "project_id": project_id, "user_id": user_id}
    return replace(cause, reason=reason, evidence={**cause.evidence, "tenant": tenant})


_START, _END = "guest_start", "guest_end"


def guest_starts(tx: Connection, instance: InstanceRecord, cause: Cause) -> None:
    """Record that the guest of *instance* starts. Call this before the start, so that a crash cannot hide a guest."""
    _note(tx, instance, _START, _of(cause, instance, "guest starts,"))


def guest_ended(tx: Connection, instance: InstanceRecord, cause: Cause) -> None:
    """Record that the guest of *instance* has ended, if its start is on record. This can be repeated."""
    _note(tx, instance, _END, _of(cause, instance, "guest ended,"))


def _of(cause: Cause, instance: InstanceRecord, what: str) -> Cause:
    return of_instance(
        cause, what, instance_uuid=instance.uuid, project_id=instance.project_id, user_id=instance.user_id
    )


def _note(tx: Connection, instance: InstanceRecord, event: str, cause: Cause) -> None:
    for arq in arq_rows.of_instance(tx, instance.uuid):
        device = device_rows.get_by_id(tx, arq.device_id) if arq.device_id and arq.state in ACTIVE else None
        if device is None:
            continue
        last = history.last_of(tx, device.uuid, (_START, _END))
        if event != (last or _END):
            remark(tx, device, event, cause, {})
