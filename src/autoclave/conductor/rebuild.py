"""Check whether an instance may be rebuilt from another image on its host (image-traits specification)."""

from collections.abc import Mapping
from typing import Any

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.conductor.builds import NO_FAULT, fault
from autoclave.db import instances as instance_rows
from autoclave.db.instances import InstanceRecord
from autoclave.exceptions import AutoclaveError, BadRequest, DatabaseUnavailable
from autoclave.lifecycle.ports import Ports
from autoclave.objects.base import RequestContext
from autoclave.rpc.agent_api import AgentAPI
from autoclave.rules.flavor_image import forbidden_anywhere, image_traits
from autoclave.rules.instance_states import TaskState

LOG = logging.getLogger(__name__)

_TAKEN_AWAY = "Instance %s was deleted or changed concurrently before its rebuild."


class Rebuilder:
    """Check rebuilds against the providers of the instances, and hand them over to the hosts' agents.

    The check uses no allocation candidates: a full host would have none, although a rebuild needs nothing more from it.
    """

    def __init__(self, ports: Ports, agents: AgentAPI) -> None:
        self._ports = ports
        self._agents = agents

    def rebuild(self, context: RequestContext, instance_uuid: str) -> None:
        """Have the host rebuild the instance from the image of its row, or keep the old image and set a fault.

        Until the host's agent puts its run on the row, this can be repeated, for example by a sweep.

        :raises DatabaseUnavailable: the outcome is unknown; a sweep repeats the check.
        """
        instance = self._ports.db.transact(lambda tx: self._take(tx, instance_uuid))
        if instance is None or instance.rebuild is None:
            return
        try:
            self._check(instance, instance.rebuild)
            if instance.host is None or instance.launched_at is None:
                # Its host may have given its devices back, and without them it must not run.
                raise BadRequest("The instance has never run and cannot be rebuilt. Delete it and create a new one.")
            checked = self._mark(instance, instance.rebuild)
            if checked is None:
                LOG.info(_TAKEN_AWAY, instance.uuid)
                return
            host, instance = instance.host, checked
            self._agents.rebuild_instance(context, host, instance.uuid)
        except DatabaseUnavailable:
            raise
        except AutoclaveError as error:
            self._refuse(instance, error)

    def _take(self, tx: Connection, instance_uuid: str) -> InstanceRecord | None:
        """Mark the rebuild as begun, and return the instance; None if its agent has it already or no rebuild is
        requested.
        """
        instance = instance_rows.get(tx, instance_uuid, lock=True)
        if instance is None or instance.agent_run_id is not None:
            return None
        # Clear the fault, so that a later one is that of this rebuild.
        return instance_rows.swap(
            tx, instance, expect_task=TaskState.REBUILDING, updated_at=self._ports.clock(), **NO_FAULT
        )

    def _check(self, instance: InstanceRecord, wanted: Mapping[str, Any]) -> None:
        """Refuse an image whose traits the instance's providers do not have.

        :raises BadRequest: traits are missing; the message names them.
        :raises PlacementError: Placement failed.
        """
        required = image_traits(wanted["image"]["properties"]).required
        same = wanted["image_uuid"] == instance.image_uuid
        if not required or (same and required == image_traits(instance.image["properties"]).required):
            return
        forbidden = forbidden_anywhere(instance.flavor["extra_specs"])
        if conflict := sorted(required & forbidden.keys()):
            keys = ", ".join(f"'{forbidden[trait]}=forbidden'" for trait in conflict)
            raise BadRequest(
                f"The image requires {', '.join(conflict)}, which the instance's flavor forbids ({keys}). Choose "
                "another image, or create a new instance with another flavor."
            )
        placement = self._ports.placement
        there: set[str] = set()
        for provider in placement.get_allocations(instance.uuid).allocations:
            there |= placement.get_traits(provider).names
        if missing := sorted(required - there):
            raise BadRequest(
                f"The image requires {', '.join(missing)}, which no resource of the instance has. Choose another "
                "image, or create a new instance with this one."
            )

    def _mark(self, instance: InstanceRecord, wanted: Mapping[str, Any]) -> InstanceRecord | None:
        """Mark the rebuild as checked, so that a late message about another rebuild cannot begin it unchecked."""
        values = {"rebuild": {**wanted, "checked": True}, "updated_at": self._ports.clock()}
        return self._ports.db.transact(
            lambda tx: instance_rows.swap(tx, instance, expect_task=TaskState.REBUILDING, **values)
        )

    def _refuse(self, instance: InstanceRecord, error: AutoclaveError) -> None:
        LOG.warning("Rebuild of instance %s refused, the instance is unchanged: %s", instance.uuid, error)
        now = self._ports.clock()
        values = {"task_state": None, "rebuild": None, "updated_at": now, **fault(error, now)}
        back = self._ports.db.transact(
            lambda tx: instance_rows.swap(tx, instance, expect_task=TaskState.REBUILDING, **values)
        )
        if back is None:
            LOG.info(_TAKEN_AWAY, instance.uuid)
