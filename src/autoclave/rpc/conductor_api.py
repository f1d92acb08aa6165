"""Call the conductors: each method of their RPC API, with the version that introduced it.

* 1.0: ``arq_bind``, ``arq_unbind``, ``arq_delete``, ``arq_delete_for_instance``.
* 1.1: ``check_request``, ``build_instance``, ``delete_instance``, ``rebuild_instance``, ``explain``.

Any conductor takes a message. A call raises the error of the remote method, or :class:`RPCError` if no conductor
answered. A cast raises :class:`RPCUnavailable` if the message could not be sent.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from autoclave.objects.base import RequestContext
from autoclave.rpc.port import CONDUCTOR_TOPIC, Transport

VERSION = "1.1"
"""The version of a conductor of this release."""


class ConductorAPI:
    """Send messages of the conductors' RPC API."""

    def __init__(self, transport: Transport) -> None:
        self._requests = transport.client(CONDUCTOR_TOPIC, version="1.0")
        self._instances = transport.client(CONDUCTOR_TOPIC, version="1.1")

    def arq_bind(self, context: RequestContext, requests: Sequence[Mapping[str, Any]]) -> None:
        """Bind accelerator requests, or record why they cannot be bound."""
        self._requests.call(context, "arq_bind", requests=list(requests))

    def arq_unbind(self, context: RequestContext, arq_uuids: Sequence[str]) -> None:
        """Unbind accelerator requests, and keep them."""
        self._requests.call(context, "arq_unbind", arq_uuids=list(arq_uuids))

    def arq_delete(self, context: RequestContext, arq_uuids: Sequence[str]) -> None:
        """Unbind and delete accelerator requests."""
        self._requests.call(context, "arq_delete", arq_uuids=list(arq_uuids))

    def arq_delete_for_instance(self, context: RequestContext, instance_uuid: str) -> None:
        """Unbind and delete all accelerator requests of an instance."""
        self._requests.call(context, "arq_delete_for_instance", instance_uuid=instance_uuid)

    def check_request(self, context: RequestContext, flavor: Mapping[str, Any], image: Mapping[str, Any]) -> None:
        """Check whether a flavor and an image, given as snapshots, can be satisfied together.

        :raises BadRequest: they contradict each other, or name something that does not exist.
        """
        self._instances.call(context, "check_request", flavor=dict(flavor), image=dict(image))

    def build_instance(self, context: RequestContext, instance_uuid: str) -> None:
        """Cast to build an instance whose row exists."""
        self._instances.cast(context, "build_instance", instance_uuid=instance_uuid)

    def delete_instance(self, context: RequestContext, instance_uuid: str) -> None:
        """Cast to delete an instance that is marked for deletion."""
        self._instances.cast(context, "delete_instance", instance_uuid=instance_uuid)

    def rebuild_instance(self, context: RequestContext, instance_uuid: str) -> None:
        """Cast to rebuild an instance from the image in the ``rebuild`` of its row."""
        self._instances.cast(context, "rebuild_instance", instance_uuid=instance_uuid)

    def explain(self, context: RequestContext, flavor: str, image: str, host: str | None) -> Any:
        """Return the hosts that could run an instance, and what each of the others lacks.

        :param flavor: name or id.
        :param image: name or uuid.
        :param host: the only host to consider.
        :raises ApiError: the flavor, image or host does not exist, no host could ever run it, or ``[compute]`` is off.
        """
        return self._instances.call(context, "explain", flavor=flavor, image=image, host=host)
