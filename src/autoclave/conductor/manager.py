"""The conductor's RPC endpoint, and its periodic sweep."""

from collections.abc import Mapping, Sequence
from typing import Any

from autoclave.conductor.binding import Binder, BindRequest
from autoclave.conductor.unbinding import Unbinder
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.sweep import sweep
from autoclave.objects.context import RequestContext

RPC_VERSION = "1.0"


class ConductorManager:
    """What the API asks of a conductor. The public methods, but for :meth:`sweep`, are the RPC API.

    :param name: this conductor's name, for the history.
    """

    def __init__(self, ports: Ports, name: str, lease_seconds: float) -> None:
        self._ports = ports
        self._name = name
        self._binder = Binder(ports, name, lease_seconds)
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

    def sweep(self) -> None:
        """Finish what others left; run every ``[conductor] sweep_interval``."""
        sweep(self._ports, RequestContext.admin(), self._name)
