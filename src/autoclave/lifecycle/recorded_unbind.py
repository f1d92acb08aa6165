"""Record that accelerator requests are to be given back, where no conductor answers."""

import uuid
from collections.abc import Sequence

from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.release import begin_unbind
from autoclave.lifecycle.swap import Cause


def record_unbind(ports: Ports, arq_uuids: Sequence[str], cause: Cause, *, delete: bool) -> bool:
    """Put requests into Deleting, with a lease that is over: the next sweep of any conductor finishes them.

    A conductor that works on one of them in the meantime is not disturbed: every step may be done twice.

    :param delete: whether the requests go; else they stay, unbound.
    :returns: whether the caller may drop its allocations: ``reserved=total`` stands for all that the requests hold.
    :raises DatabaseUnavailable: those that were not reached yet are not recorded.
    """
    stands = True
    for arq_uuid in arq_uuids:
        owner = f"{cause.request_id}/{uuid.uuid4().hex[:8]}"
        now = ports.clock()

        begun = ports.db.transact(
            lambda tx, arq=arq_uuid, owner=owner, now=now: begin_unbind(  # type: ignore[misc]
                tx, arq, cause, lease_owner=owner, lease_expires_at=now, delete=delete
            )
        )
        stands = stands and (begun is None or begun.settled or begun.arq.device_id is None)
    return stands
