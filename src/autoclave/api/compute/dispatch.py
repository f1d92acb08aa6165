"""Mark a server for an action, and send the action to a conductor or an agent.

The mark is written first. If the message is not delivered, the mark is removed, so that the error is true. If this
service dies between the two, a conductor's sweep or the host's agent finds the mark.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.api.compute.common import find
from autoclave.api.context import Api
from autoclave.db import instances as instance_rows
from autoclave.db.instances import InstanceRecord
from autoclave.exceptions import Conflict, RPCUnavailable, StateConflict
from autoclave.objects.base import RequestContext
from autoclave.rpc.agent_api import INSTANCES
from autoclave.rules.instance_states import Action, TaskState, VMState, allowed, task_of

LOG = logging.getLogger(__name__)


def hand_over(api: Api, context: RequestContext, instance_uuids: Sequence[str]) -> None:
    """Send new instances to a conductor. Mark those that it does not accept as errors.

    :raises RPCUnavailable: it accepted none; they are deleted.
    """
    taken = 0
    for uuid in instance_uuids:
        try:
            api.conductor.build_instance(context, uuid)
            taken += 1
        except RPCUnavailable as error:
            if not taken:
                api.ports.db.transact(lambda tx: _remove(tx, instance_uuids))
                raise
            LOG.warning("Instance %s was not handed over to a conductor: %s", uuid, error)
            api.ports.db.transact(partial(_fail, api, uuid))


def delete(api: Api, context: RequestContext, server: str) -> None:
    """Mark an instance as being deleted, and send it. A repeated request sends it again.

    :raises NotFound: no such instance is visible to the caller.
    :raises RPCUnavailable: the message was not delivered; the instance is not marked.
    """

    def mark(tx: Connection) -> tuple[InstanceRecord, InstanceRecord]:
        before = find(tx, context, server, lock=True)
        if before.task_state is TaskState.DELETING:
            return before, before
        return before, _swapped(tx, before, task_state=TaskState.DELETING)

    before, marked = api.ports.db.transact(mark)
    try:
        api.conductor.delete_instance(context, marked.uuid)
    except RPCUnavailable:
        if marked is not before:
            _unmark(api, marked, {"task_state": before.task_state})
        raise


def begin(
    api: Api,
    context: RequestContext,
    server: str,
    action: Action,
    send: Callable[[str, InstanceRecord], None],
    values: Mapping[str, Any] | None = None,
) -> InstanceRecord:
    """Mark an instance for *action*, and send it by *send*, which gets its host and the instance.

    :param values: columns to write with the mark.
    :returns: the instance as it was sent.
    :raises NotFound: no such instance is visible to the caller.
    :raises Conflict: the instance does not allow the action now, or its agent does not support it.
    :raises RPCUnavailable: the message was not delivered; the instance is not marked.
    """

    changes = dict(values or {})

    def mark(tx: Connection) -> tuple[InstanceRecord, InstanceRecord]:
        before = find(tx, context, server, lock=True)
        require_allowed(before, action)
        return before, _swapped(tx, before, task_state=task_of(action), **changes)

    with api.ports.db.read() as tx:
        host = require_allowed(find(tx, context, server), action)
    _require_agent(api, host)
    before, marked = api.ports.db.transact(mark)
    try:
        send(host, marked)
    except RPCUnavailable:
        _unmark(api, marked, {"task_state": None, **{name: getattr(before, name) for name in changes}})
        raise
    return marked


def _require_agent(api: Api, host: str) -> None:
    """Check that the agent of *host* supports the message.

    :raises Conflict: it does not.
    """
    refusal = api.agents.refusal(host, INSTANCES)
    if refusal is not None:
        LOG.warning("Agent %s cannot run a requested action of a server: %s", host, refusal)
        # without the reason, which names the host: the owner of the server must not see it
        raise Conflict(
            "The agent of the server's host cannot run this action; the log of this service shows the cause."
        )


def require_allowed(instance: InstanceRecord, action: Action) -> str:
    """Return the host of *instance*, if *action* is allowed now.

    :raises Conflict: it is not.
    """
    if not allowed(action, instance.vm_state, instance.task_state):
        doing = f" and {instance.task_state.value} is under way" if instance.task_state else ""
        raise Conflict(f"Cannot {action.value} instance {instance.uuid} while it is {instance.vm_state.value}{doing}.")
    if instance.host is None:
        raise Conflict(f"Cannot {action.value} instance {instance.uuid}: it has no host. Delete it.")
    if instance.launched_at is None:  # as in Nova; its devices may have been released
        raise Conflict(f"Cannot {action.value} instance {instance.uuid}: it has never run. Delete it.")
    return instance.host


def _swapped(tx: Connection, before: InstanceRecord, **values: Any) -> InstanceRecord:
    after = instance_rows.swap(tx, before, expect_task=before.task_state, **values)
    if after is None:  # only if the engine does not keep the lock of find()
        raise StateConflict(f"instance {before.uuid} was changed concurrently")
    return after


def _unmark(api: Api, marked: InstanceRecord, values: Mapping[str, Any]) -> None:
    """Remove a mark, unless the work has gone on from it."""
    api.ports.db.transact(lambda tx: instance_rows.swap(tx, marked, expect_task=marked.task_state, **values))


def _remove(tx: Connection, instance_uuids: Sequence[str]) -> None:
    for uuid in instance_uuids:
        made = instance_rows.get(tx, uuid, lock=True)
        if made is not None and instance_rows.swap(
            tx, made, expect_task=TaskState.SCHEDULING, task_state=TaskState.DELETING
        ):
            instance_rows.delete(tx, uuid)


def _fail(api: Api, uuid: str, tx: Connection) -> None:
    made = instance_rows.get(tx, uuid, lock=True)
    if made is not None:
        instance_rows.swap(
            tx,
            made,
            expect_task=TaskState.SCHEDULING,
            vm_state=VMState.ERROR,
            task_state=None,
            fault_code=503,
            fault_message="No conductor accepted the request. Delete the server and create it again later.",
            fault_at=api.ports.clock(),
        )
