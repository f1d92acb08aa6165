"""Unbinding and deleting accelerator requests (design §4, "Unbind")."""

import uuid
from collections.abc import Sequence
from datetime import timedelta

from autoclave.conductor.visibility import visible_arqs
from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db.arqs import ARQRecord
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.requests import Begun, begin_unbind, complete_unbind
from autoclave.lifecycle.reserve import secure
from autoclave.lifecycle.transitions import Cause
from autoclave.objects.base import RequestContext
from autoclave.rules.device_lifecycle import Actor


class Unbinder:
    """Gives devices back. Every step may be done twice, and a sweeper finishes what is not finished here.

    :param name: this conductor's name, for the history.
    :param lease_seconds: how long an unbind may take before any conductor finishes it.
    """

    def __init__(self, ports: Ports, name: str, lease_seconds: float) -> None:
        self._ports = ports
        self._name = name
        self._lease = timedelta(seconds=lease_seconds)

    def unbind(self, context: RequestContext, arq_uuids: Sequence[str]) -> None:
        """Give back what the ARQs hold; they stay, and may be bound again.

        :raises NotFound: one of them does not exist.
        :raises PlacementError: ``reserved=total`` could not be made to stand for a bind that was not
            finished. The caller must keep its allocation; the unbind goes on by itself.
        """
        self._give_back(context, arq_uuids, delete=False)

    def delete(self, context: RequestContext, arq_uuids: Sequence[str]) -> None:
        """Give back what the ARQs hold, and remove them.

        :raises NotFound: one of them does not exist.
        :raises PlacementError: see :meth:`unbind`.
        """
        self._give_back(context, arq_uuids, delete=True)

    def delete_for_instance(self, context: RequestContext, instance_uuid: str) -> None:
        """Remove every ARQ of an instance that the caller may see. None at all is fine: Nova asks twice.

        :raises PlacementError: see :meth:`unbind`.
        """
        with self._ports.db.read() as tx:
            arqs = arq_rows.of_instance(tx, instance_uuid)
        mine = [arq.uuid for arq in arqs if context.is_admin or arq.project_id == context.project_id]
        self._give_back(context, mine, delete=True)

    def _give_back(self, context: RequestContext, arq_uuids: Sequence[str], *, delete: bool) -> None:
        with self._ports.db.read() as tx:
            visible_arqs(tx, context, arq_uuids)
        cause = Cause(Actor.CONDUCTOR, self._name, context.request_id)
        unbinds = [self._begin(context, arq_uuid, cause, delete=delete) for arq_uuid in arq_uuids]
        for begun in unbinds:
            if begun is not None and not begun.settled:
                self._secure(begun.arq)
        for begun in unbinds:
            if begun is not None:
                complete_unbind(self._ports, context, begun.arq, begun.device, cause)

    def _begin(self, context: RequestContext, arq_uuid: str, cause: Cause, *, delete: bool) -> Begun | None:
        """Put one ARQ into Deleting; None if it is gone already."""
        owner = f"{context.request_id}/{uuid.uuid4().hex[:8]}"
        expires = self._ports.clock() + self._lease

        return self._ports.db.transact(
            lambda tx: begin_unbind(tx, arq_uuid, cause, lease_owner=owner, lease_expires_at=expires, delete=delete)
        )

    def _secure(self, arq: ARQRecord) -> None:
        if arq.device_id is None:
            return
        with self._ports.db.read() as tx:
            device = device_rows.get_by_id(tx, arq.device_id)
        if device is not None:
            secure(self._ports.db, self._ports.placement, device.uuid)
