"""The agents, as far as instances are concerned."""

from collections.abc import Mapping, Sequence

from autoclave.objects.context import RequestContext
from autoclave.rpc.port import AGENT_TOPIC, Client, Transport
from autoclave.rpc.versions import lack

COMPUTE_VERSION = "1.2"
"""The version of the agent's RPC API that brought instances."""


class ComputeAgents:
    """Hands instances over to the agents of their hosts."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def why_not(self, spoken: str) -> str | None:
        """Why an agent cannot be asked to run instances: it does not understand that, or must not be sent it yet.

        None if it can be.

        :param spoken: the version of the RPC API that it says it speaks.
        """
        capped = self._transport.client(AGENT_TOPIC, version=COMPUTE_VERSION).refusal(COMPUTE_VERSION)
        if capped is not None:
            return capped
        lacking = lack(spoken, COMPUTE_VERSION)
        return None if lacking is None else f"it {lacking}"

    def build(
        self, context: RequestContext, host: str, instance_uuid: str, groups: Mapping[str, Sequence[str]]
    ) -> None:
        """Have an instance built whose resources are claimed.

        :param groups: the providers that each request group got, by its suffix.
        :raises RPCUnavailable: the message could not be handed over.
        """
        travelling = {suffix: list(providers) for suffix, providers in groups.items()}
        self._client(host).cast(context, "build_instance", instance_uuid=instance_uuid, groups=travelling)

    def delete(self, context: RequestContext, host: str, instance_uuid: str) -> None:
        """Have an instance deleted, and what it holds given back.

        :raises RPCUnavailable: the message could not be handed over.
        """
        self._client(host).cast(context, "delete_instance", instance_uuid=instance_uuid)

    def rebuild(self, context: RequestContext, host: str, instance_uuid: str) -> None:
        """Have an instance started anew from the image that its row names.

        :raises RPCUnavailable: the message could not be handed over.
        """
        self._client(host).cast(context, "rebuild_instance", instance_uuid=instance_uuid)

    def _client(self, host: str) -> Client:
        return self._transport.client(AGENT_TOPIC, server=host, version=COMPUTE_VERSION)
