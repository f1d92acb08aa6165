"""The conductor's RPC endpoint, and its periodic sweep."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autoclave.conductor.binding import Binder, BindRequest
from autoclave.conductor.unbinding import Unbinder
from autoclave.lifecycle.backfill import run_all
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.swap import Cause
from autoclave.lifecycle.sweep import sweep
from autoclave.objects.context import RequestContext
from autoclave.rules.device_states import Actor

RPC_VERSION = "1.0"


class ConductorManager:
    """What the API asks of a conductor. The RPC API is the public methods that take a context.

    :param name: this conductor's name, for the history.
    :param resolved: called when a bind has ended, well or not; returns at once.
    """

    def __init__(
        self, ports: Ports, name: str, lease_seconds: float, resolved: Callable[[], None] = lambda: None
    ) -> None:
        self._ports = ports
        self._name = name
        self._binder = Binder(ports, name, lease_seconds, resolved)
        self._unbinder = Unbinder(ports, name, lease_seconds)

    def arq_bind(self, context: RequestContext, requests: Sequence[Mapping[str, Any]]) -> None:
        """See :meth:`Binder.bind`."""
        self._binder.bind(context, [BindRequest.from_message(request) for request in requests])

    def arq_unbind(self, context: RequestContext, arq_uuids: Sequence[str]) -> None:
        """See :meth:`Unbinder.unbind`."""
        self._unbinder.unbind(context, arq_uuids)

    def arq_delete(self, context: RequestContext, arq_uuids: Sequence[str]) -> None:
        """See :meth:`Unbinder.delete`."""
        self._unbinder.delete(context, arq_uuids)

    def arq_delete_for_instance(self, context: RequestContext, instance_uuid: str) -> None:
        """See :meth:`Unbinder.delete_for_instance`."""
        self._unbinder.delete_for_instance(context, instance_uuid)

    def init_host(self) -> None:
        """Put right what services of the release before left in the database; run once, before messages are taken.

        :raises DatabaseUnavailable: it cannot be; the conductor must not start.
        """
        run_all(self._ports, Cause(Actor.CONDUCTOR, self._name, RequestContext.admin().request_id))

    def sweep(self) -> None:
        """Finish what others left; run every ``[conductor] sweep_interval``."""
        sweep(self._ports, RequestContext.admin(), self._name)
