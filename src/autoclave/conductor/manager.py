"""Serve the conductor's RPC endpoint, and run its periodic sweep."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autoclave.conductor.binding import Binder, BindRequest, Unbinder
from autoclave.conductor.compute import Compute
from autoclave.exceptions import Conflict
from autoclave.lifecycle.backfill import run_all
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.reserve import Withdrawals
from autoclave.lifecycle.sweep import sweep
from autoclave.lifecycle.transitions import Cause
from autoclave.objects.base import RequestContext
from autoclave.rules.device_lifecycle import Actor


class ConductorManager:
    """Serve requests of the API. The RPC API consists of the public methods that take a context.

    :param name: this conductor's name, for the history.
    :param resolved: called when a bind has succeeded or failed; returns at once.
    :param compute: its work on instances; None where ``[compute]`` is not enabled.
    """

    def __init__(
        self,
        ports: Ports,
        name: str,
        lease_seconds: float,
        resolved: Callable[[], None] = lambda: None,
        compute: Compute | None = None,
    ) -> None:
        self._ports = ports
        self._instances = compute
        self._name = name
        self._withdrawals = Withdrawals(ports)
        self._binder = Binder(ports, name, lease_seconds, resolved)
        self._unbinder = Unbinder(ports, name, lease_seconds)

    def arq_bind(self, context: RequestContext, requests: Sequence[Mapping[str, Any]]) -> None:
        """Bind accelerator requests; see :meth:`Binder.bind`."""
        self._binder.bind(context, [BindRequest(**request) for request in requests])

    def arq_unbind(self, context: RequestContext, arq_uuids: Sequence[str]) -> None:
        """Unbind accelerator requests; see :meth:`Unbinder.unbind`."""
        self._unbinder.unbind(context, arq_uuids)

    def arq_delete(self, context: RequestContext, arq_uuids: Sequence[str]) -> None:
        """Delete accelerator requests; see :meth:`Unbinder.delete`."""
        self._unbinder.delete(context, arq_uuids)

    def arq_delete_for_instance(self, context: RequestContext, instance_uuid: str) -> None:
        """Delete the accelerator requests of an instance; see :meth:`Unbinder.delete_for_instance`."""
        self._unbinder.delete_for_instance(context, instance_uuid)

    def check_request(self, _context: RequestContext, flavor: Mapping[str, Any], image: Mapping[str, Any]) -> None:
        """Check the request of a flavor and an image; see :meth:`Compute.check`. New in 1.1."""
        self._compute().check(flavor, image)

    def build_instance(self, context: RequestContext, instance_uuid: str) -> None:
        """Build an instance; see :meth:`Builder.build <autoclave.conductor.builds.Builder.build>`. New in 1.1."""
        self._compute().build(context, instance_uuid)

    def delete_instance(self, context: RequestContext, instance_uuid: str) -> None:
        """Delete an instance; see :meth:`Builder.delete <autoclave.conductor.builds.Builder.delete>`. New in 1.1."""
        self._compute().delete(context, instance_uuid)

    def rebuild_instance(self, context: RequestContext, instance_uuid: str) -> None:
        """Rebuild an instance; see :meth:`Rebuilder.rebuild <autoclave.conductor.rebuild.Rebuilder.rebuild>`. New in
        1.1.
        """
        self._compute().rebuild(context, instance_uuid)

    def explain(self, _context: RequestContext, flavor: str, image: str, host: str | None = None) -> dict[str, Any]:
        """Explain hosts; see :meth:`Explainer.explain <autoclave.conductor.explain.Explainer.explain>`. New in 1.1."""
        return self._compute().explain(flavor, image, host)

    def init_host(self) -> None:
        """Run the online data migrations, once, before messages are accepted.

        :raises DatabaseUnavailable: a migration failed; the conductor must not start.
        """
        run_all(self._ports, Cause(Actor.CONDUCTOR, self._name, RequestContext.admin().request_id))

    def sweep(self) -> None:
        """Finish interrupted work of other services, and reconcile withdrawals; run every ``[conductor]
        sweep_interval``.
        """
        context = RequestContext.admin()
        sweep(self._ports, context, self._name)
        self._withdrawals.tell()
        if self._instances is not None:
            self._instances.sweep(context)

    def _compute(self) -> Compute:
        """Return this conductor's work on instances.

        :raises Conflict: ``[compute]`` is not enabled here.
        """
        if self._instances is None:
            raise Conflict("[compute] is not enabled in this conductor's configuration.")
        return self._instances
