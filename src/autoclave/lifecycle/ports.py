"""Define the ports of the life of a device.

What the life of a device needs of the world.

Cleaning asked for over RPC.
"""

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
    """The agents, as far as cleaning is concerned."""

    def why_not(self, hostname: str) -> str | None:
        """Why the host's agent cannot be asked: it does not understand ``cleanup_device`` (RPC 1.1). None if it does.

        One that understands it and is away can be asked: the message expires, and its next start finds the device.
        """

    def clean(self, context: RequestContext, device: DeviceRecord) -> None:
        """Ask the host's agent to clean *device*, as it is at its present version; returns at once.

        :raises RPCUnavailable: the message could not be handed over.
        """


@dataclass(frozen=True)
class Ports:
    """The world, passed to everything that moves a device.

    :param clock: now, in UTC without a zone, as the database keeps it.
    :param tells_nova: whether there is a Nova that must be told how a bind ended.
    """

    db: Database
    placement: PlacementClient
    cleaners: Cleaners
    clock: Callable[[], datetime] = utcnow
    tells_nova: bool = False

    def event_debt(self) -> dict[str, Any]:
        """The columns that the transaction which resolves an ARQ writes beside its state."""
        return arqs.owed(self.clock()) if self.tells_nova else {}


class RPCCleaners:
    """The agents behind a transport; see :class:`autoclave.lifecycle.ports.Cleaners`."""

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
