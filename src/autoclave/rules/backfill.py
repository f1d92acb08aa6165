"""The state that the NVMe specification's online data migration gives to a device that has none."""

from autoclave.rules.device_lifecycle import DeviceState


def is_taken(holders: int, handles: int) -> bool:
    """Whether a device has nothing left to give: by its handles if there are several, else by any request.

    :param holders: active requests for the device.
    :param handles: its attach handles.
    """
    return holders >= max(1, handles)


def backfilled_state(*, holders: int, handles: int, known_dirty: bool) -> tuple[DeviceState, str]:
    """The state and its reason.

    :param known_dirty: its drive is in the ledger of dirty drives, which goes before the specification's rule: it
        would be offered uncleaned.
    """
    if is_taken(holders, handles):
        return DeviceState.ALLOCATED, "backfill: held by accelerator requests from before device states were recorded"
    if known_dirty:
        return DeviceState.ERROR, "backfill: nobody holds it, but its drive is known not to have been cleaned"
    return DeviceState.AVAILABLE, "backfill: no accelerator request held it; clean on the operator's word"
