"""The conductors and the agents, as far as instances are concerned."""

from collections.abc import Mapping
from typing import Any

from oslo_log import log as logging

from autoclave.exceptions import Conflict
from autoclave.objects.context import RequestContext
from autoclave.rpc.port import AGENT_TOPIC, CONDUCTOR_TOPIC, Client, Transport
from autoclave.rules.instance_states import Action

LOG = logging.getLogger(__name__)

CONDUCTOR_VERSION = "1.1"
"""The version of the conductor's RPC API that brought instances."""
AGENT_VERSION = "1.2"
"""The same of the agent's."""

_METHODS = {Action.START: "start_instance", Action.STOP: "stop_instance", Action.REBOOT: "reboot_instance"}


class InstanceServices:
    """Asks a conductor whether something can be, and hands over what is to be done."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._conductor = transport.client(CONDUCTOR_TOPIC, version=CONDUCTOR_VERSION)

    def check(self, context: RequestContext, flavor: Mapping[str, Any], image: Mapping[str, Any]) -> None:
        """Ask whether anything can satisfy a flavor and an image together, as snapshots of them say.

        :raises BadRequest: they exclude each other, or name what there is not.
        :raises RPCError: nobody answered.
        """
        self._conductor.call(context, "check_request", flavor=dict(flavor), image=dict(image))

    def build(self, context: RequestContext, instance_uuid: str) -> None:
        """Have an instance built whose row is there.

        :raises RPCUnavailable: the message was not handed over.
        """
        self._conductor.cast(context, "build_instance", instance_uuid=instance_uuid)

    def delete(self, context: RequestContext, instance_uuid: str) -> None:
        """Have an instance deleted that is marked for it.

        :raises RPCUnavailable: the message was not handed over.
        """
        self._conductor.cast(context, "delete_instance", instance_uuid=instance_uuid)

    def rebuild(self, context: RequestContext, instance_uuid: str) -> None:
        """Have an instance started anew from the image that ``rebuild`` of its row names.

        :raises RPCUnavailable: the message was not handed over.
        """
        self._conductor.cast(context, "rebuild_instance", instance_uuid=instance_uuid)

    def explain(self, context: RequestContext, flavor: str, image: str, host: str | None) -> Any:
        """Ask which hosts could take an instance, and what each of the others lacks.

        :param flavor: name or id.
        :param image: name or uuid.
        :param host: the only one that is wanted.
        :raises ApiError: there is no such flavor, image or host, no host could ever take it, or ``[compute]`` is off.
        :raises RPCError: nobody answered.
        """
        return self._conductor.call(context, "explain", flavor=flavor, image=image, host=host)

    def require_agent(self, host: str) -> None:
        """See to it that the agent of *host* understands what it would be sent.

        :raises Conflict: it does not.
        """
        refusal = self._agent(host).refusal(AGENT_VERSION)
        if refusal is not None:
            LOG.warning("A server on %s was to be worked on, and its agent cannot be asked: %s", host, refusal)
            # without the reason: it names the host, and whose the server is need not know where it runs
            raise Conflict("The agent of the server's host cannot be asked for this: the log of this service says why.")

    def power(self, context: RequestContext, host: str, action: Action, instance_uuid: str) -> None:
        """Have the agent of *host* start, stop or reboot an instance.

        :raises RPCUnavailable: the message was not handed over.
        """
        self._agent(host).cast(context, _METHODS[action], instance_uuid=instance_uuid)

    def _agent(self, host: str) -> Client:
        return self._transport.client(AGENT_TOPIC, server=host, version=AGENT_VERSION)
