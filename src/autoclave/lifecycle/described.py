"""What a discovered device is in the terms of the database."""

import json

from autoclave.drivers.base import DiscoveredDevice


def attributes_of(found: DiscoveredDevice) -> dict[str, str]:
    """The deployable's attributes, as Cyborg names them: ``rc`` and ``trait0``, ``trait1``, …"""
    traits = {f"trait{number}": trait for number, trait in enumerate(found.traits)}
    return {"rc": found.resource_class, **traits}


def board_info(found: DiscoveredDevice) -> str:
    """``std_board_info``, with the cleanup action locked in."""
    info = dict(found.std_board_info)
    if found.cleanup_action is not None:
        info["cleanup_action"] = found.cleanup_action
    return json.dumps(info, sort_keys=True)


def recorded_layout(found: DiscoveredDevice) -> str | None:
    """``layout`` of a drive as it was found."""
    return found.layout.to_json() if found.layout is not None and found.layout.recordable else None


def without_action(info: str | None) -> str | None:
    """``std_board_info`` without the cleanup action: that of another drive says nothing of this one."""
    if info is None:
        return None
    return json.dumps(
        {key: value for key, value in json.loads(info).items() if key != "cleanup_action"}, sort_keys=True
    )
