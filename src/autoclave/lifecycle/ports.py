"""Define the external services that the life cycle of a device needs, and the cleaning request over RPC."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from autoclave.db import arqs
from autoclave.db.columns import utcnow
from autoclave.db.devices import DeviceRecord
from autoclave.db.engine import Database
from autoclave.objects.base import Device, RequestContext
from autoclave.placement.client import PlacementClient
from autoclave.rpc.agent_api import CLEANUP, AgentAPI
from autoclave.rpc.port import Transport


class Cleaners(Protocol):
    """Request cleaning from the agents."""

    def why_not(self, hostname: str) -> str | None:
        """Return why the host's agent cannot clean, or None if it can: ``cleanup_device`` needs RPC 1.1.

        An agent that supports it but is down can be asked: the message expires, and its next start finds the device.
        """

    def clean(self, context: RequestContext, device: DeviceRecord) -> None:
        """Ask the host's agent to clean *device* at its current version; return at once.

        :raises RPCUnavailable: the message could not be sent.
        """


@dataclass(frozen=True)
class Ports:
    """Bundle the services that every state transition needs.

    :param clock: returns the current time, in UTC without a time zone, as the database stores it.
    :param tells_nova: a Nova must be notified how a bind ended.
    """

    db: Database
    placement: PlacementClient
    cleaners: Cleaners
    clock: Callable[[], datetime] = utcnow
    tells_nova: bool = False

    def event_debt(self) -> dict[str, Any]:
        """Return the columns of the pending Nova event, to be written when an ARQ is resolved."""
        return arqs.owed(self.clock()) if self.tells_nova else {}


class RPCCleaners:
    """Request cleaning from agents over RPC; see :class:`autoclave.lifecycle.ports.Cleaners`."""

    def __init__(self, transport: Transport) -> None:
        self._agents = AgentAPI(transport)

    def why_not(self, hostname: str) -> str | None:
        return self._agents.refusal(hostname, CLEANUP)

    def clean(self, context: RequestContext, device: DeviceRecord) -> None:
        self._agents.cleanup_device(context, _travelling(device))


def _travelling(device: DeviceRecord) -> Device:
    return Device(
        id=device.id,
        uuid=device.uuid,
        type=device.type.value,
        vendor=device.vendor,
        model=device.model,
        std_board_info=device.std_board_info,
        vendor_board_info=device.vendor_board_info,
        hostname=device.hostname,
        status=device.status.value,
        device_state=device.device_state.value if device.device_state else None,
        state_version=device.state_version,
    )
