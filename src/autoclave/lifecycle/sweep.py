"""Finish what other services began and did not end. Any number of conductors may sweep concurrently."""

from oslo_log import log as logging

from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db.arqs import ARQRecord
from autoclave.exceptions import AutoclaveError
from autoclave.lifecycle.maintenance import follow_hosts
from autoclave.lifecycle.operator import finish_forget
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.requests import complete_unbind, take_bind_back
from autoclave.lifecycle.reserve import secure, settle
from autoclave.lifecycle.transitions import Cause
from autoclave.objects.base import RequestContext
from autoclave.rules.device_lifecycle import Actor, ARQState, must_be_reserved

LOG = logging.getLogger(__name__)


def sweep(ports: Ports, context: RequestContext, who: str) -> None:
    """Roll back expired binds, finish expired unbinds and interrupted forgets, and complete pending releases.

    Failures are logged, and the next sweep retries.

    :raises DatabaseUnavailable: the database cannot be read.
    """
    with ports.db.read() as tx:
        expired = arq_rows.expired(tx, ports.clock())
        half_forgotten = device_rows.list_all(tx, forgetting=True)
    for arq in expired:
        try:
            _finish(ports, context, arq, who)
        except AutoclaveError as error:
            LOG.warning("The %s of request %s could not be finished yet: %s", arq.state.value, arq.uuid, error)
    cause = Cause(Actor.CONDUCTOR, who, context.request_id, "a forget left unfinished was finished")
    for device in half_forgotten:
        try:
            finish_forget(ports, device.uuid, cause)
        except AutoclaveError as error:
            LOG.warning("Device %s was not forgotten, as the operator had asked: %s", device.uuid, error)
    follow_hosts(ports, Cause(Actor.CONDUCTOR, who, context.request_id, "its host began or ended a maintenance"))
    pay_debts(ports)


def pay_debts(ports: Ports, hostname: str | None = None) -> None:
    """Lower ``reserved`` of each device with a pending release.

    A clean device that is disabled or held waits until that ends.
    """
    with ports.db.read() as tx:
        debtors = device_rows.list_all(tx, hostname=hostname, release_pending=True)
    for device in debtors:
        if must_be_reserved(device.offer):
            continue
        try:
            settle(ports.db, ports.placement, device.uuid)
        except AutoclaveError as error:
            LOG.warning("Device %s is not offered again yet: %s", device.uuid, error)


def _finish(ports: Ports, context: RequestContext, arq: ARQRecord, who: str) -> None:
    if arq.state is ARQState.BIND_STARTED:
        reason = "the bind was not finished within its lease"
        cause = Cause(Actor.CONDUCTOR, who, context.request_id, reason)
        debt = ports.event_debt()
        device = ports.db.transact(
            lambda tx: take_bind_back(tx, arq.uuid, reason, cause, event_debt=debt, lease_owner=arq.lease_owner)
        )
        if device is not None:
            secure(ports.db, ports.placement, device.uuid)
        return
    # Deleting: write reserved=total before the request is removed, since its allocation is dropped after that.
    held = None
    if arq.device_id is not None:
        with ports.db.read() as tx:
            held = device_rows.get_by_id(tx, arq.device_id)
        if held is not None:
            secure(ports.db, ports.placement, held.uuid)
    cause = Cause(Actor.CONDUCTOR, who, context.request_id, "an unbind left unfinished was finished")
    complete_unbind(ports, context, arq, held, cause)
