"""Call the agents: each method of their RPC API, with the version that introduced it.

* 1.1: ``cleanup_device`` (NVMe specification).
* 1.2: ``build_instance``, ``delete_instance``, ``rebuild_instance``, ``start_instance``, ``stop_instance``,
  ``reboot_instance``.
* 1.3: ``function_users``.

A message goes to the agent of one host. A cast to an agent that is too old is lost, so call :meth:`AgentAPI.refusal`
first. A cast raises :class:`RPCUnavailable` if the message could not be sent.
"""

from collections.abc import Mapping, Sequence

from autoclave.objects.base import Device, RequestContext
from autoclave.rpc.port import AGENT_TOPIC, Client, Transport, lack
from autoclave.rules.instance_states import Action

VERSION = "1.3"
"""The version of an agent of this release."""
CLEANUP = "1.1"
INSTANCES = "1.2"
FUNCTION_USERS = "1.3"

_POWER = {Action.START: "start_instance", Action.STOP: "stop_instance", Action.REBOOT: "reboot_instance"}


class AgentAPI:
    """Send messages of the agents' RPC API."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def refusal(self, host: str, version: str) -> str | None:
        """Return why the agent of *host* must not get methods of *version*, or None; see :class:`Client`."""
        return self._client(host, version).refusal(version)

    def refuses_instances(self, spoken: str) -> str | None:
        """Return why an agent that reports version *spoken* cannot run instances, or None."""
        capped = self._transport.client(AGENT_TOPIC, version=INSTANCES).refusal(INSTANCES)
        if capped is not None:
            return capped
        lacking = lack(spoken, INSTANCES)
        return None if lacking is None else f"it {lacking}"

    def cleanup_device(self, context: RequestContext, device: Device) -> None:
        """Cast to erase a device."""
        self._client(device.hostname, CLEANUP).cast(context, "cleanup_device", device=device)

    def build_instance(
        self, context: RequestContext, host: str, instance_uuid: str, groups: Mapping[str, Sequence[str]]
    ) -> None:
        """Cast to build an instance whose resources are claimed.

        :param groups: the providers of each request group, by its suffix.
        """
        travelling = {suffix: list(providers) for suffix, providers in groups.items()}
        self._client(host, INSTANCES).cast(context, "build_instance", instance_uuid=instance_uuid, groups=travelling)

    def delete_instance(self, context: RequestContext, host: str, instance_uuid: str) -> None:
        """Cast to delete an instance, and to free its resources."""
        self._client(host, INSTANCES).cast(context, "delete_instance", instance_uuid=instance_uuid)

    def rebuild_instance(self, context: RequestContext, host: str, instance_uuid: str) -> None:
        """Cast to rebuild an instance from the image in its row."""
        self._client(host, INSTANCES).cast(context, "rebuild_instance", instance_uuid=instance_uuid)

    def power(self, context: RequestContext, host: str, action: Action, instance_uuid: str) -> None:
        """Cast to start, stop or reboot an instance."""
        self._client(host, INSTANCES).cast(context, _POWER[action], instance_uuid=instance_uuid)

    def function_users(
        self, context: RequestContext, host: str, addresses: Sequence[str]
    ) -> Mapping[str, Sequence[str]]:
        """Return the guests and programs that use each PCI function of *addresses*.

        :raises AutoclaveError: the agent did not answer, or cannot determine them.
        """
        users: Mapping[str, Sequence[str]] = self._client(host, FUNCTION_USERS).call(
            context, "function_users", addresses=list(addresses)
        )
        return users

    def _client(self, host: str, version: str) -> Client:
        return self._transport.client(AGENT_TOPIC, server=host, version=version)
