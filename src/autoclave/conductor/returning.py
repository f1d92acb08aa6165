"""Giving back what an instance holds beside its guest: accelerator requests, then allocations."""

from oslo_log import log as logging

from autoclave.conductor.unbinding import Unbinder
from autoclave.db import arqs as arq_rows
from autoclave.exceptions import PlacementNotFound, StateConflict
from autoclave.lifecycle.ports import Ports
from autoclave.objects.base import RequestContext

LOG = logging.getLogger(__name__)


def give_back(ports: Ports, unbinder: Unbinder, context: RequestContext, instance_uuid: str) -> None:
    """Give back all that an instance without a guest holds. Every step may be done twice.

    The allocation stays until the devices are out of the instance's hands: it is what keeps them from being offered.

    :raises AutoclaveError: something could not be given back, and may be tried again.
    """
    unbinder.delete_for_instance(RequestContext.admin(context.request_id), instance_uuid)
    with ports.db.read() as tx:
        left = arq_rows.of_instance(tx, instance_uuid)
    if left:
        raise StateConflict(f"accelerator request {left[0].uuid} of instance {instance_uuid} is not given back yet")
    try:
        ports.placement.delete_allocations(instance_uuid)
    except PlacementNotFound:
        LOG.debug("Instance %s holds nothing in Placement.", instance_uuid)
