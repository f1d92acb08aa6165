"""Cleaning asked for over RPC."""

from autoclave.db.devices import DeviceRecord
from autoclave.objects.base import Device, RequestContext
from autoclave.rpc.agent_api import CLEANUP, AgentAPI
from autoclave.rpc.port import Transport


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
