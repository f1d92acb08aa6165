"""Whose instance gets a device, or returns it: for its history, which administrators alone may read."""

from dataclasses import replace

from autoclave.lifecycle.transitions import Cause


def of_instance(
    cause: Cause, what: str, *, instance_uuid: str | None, project_id: str | None, user_id: str | None
) -> Cause:
    """Return *cause* with the instance, its project and the user who asked, in the reason and in the evidence.

    :param what: what happens, such as ``bound to``.
    :param user_id: None where no user asked, but a sweep.
    """
    user = f", by user {user_id}" if user_id else ""
    reason = f"{what} instance {instance_uuid or 'unknown'} of project {project_id or 'unknown'}{user}"
    tenant = {"instance_uuid": instance_uuid, "project_id": project_id, "user_id": user_id}
    return replace(cause, reason=reason, evidence={**cause.evidence, "tenant": tenant})
