"""Cleaning asked for over RPC."""

from autoclave.db.devices import DeviceRecord
from autoclave.objects.context import RequestContext
from autoclave.objects.device import Device
from autoclave.rpc.port import AGENT_TOPIC, Transport

CLEANUP_VERSION = "1.1"
"""The version of the agent's RPC API that brought ``cleanup_device`` (NVMe specification)."""


class RPCCleaners:
    """The agents behind a transport; see :class:`autoclave.lifecycle.ports.Cleaners`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def why_not(self, hostname: str) -> str | None:
        client = self._transport.client(AGENT_TOPIC, server=hostname, version=CLEANUP_VERSION)
        return client.refusal(CLEANUP_VERSION)

    def clean(self, context: RequestContext, device: DeviceRecord) -> None:
        client = self._transport.client(AGENT_TOPIC, server=device.hostname, version=CLEANUP_VERSION)
        client.cast(context, "cleanup_device", device=_travelling(device))


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
