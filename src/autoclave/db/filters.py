"""Filters of devices and deployables by what hangs on them (Cyborg's ``filters.field``)."""

from collections.abc import Callable, Mapping

import sqlalchemy as sa

from autoclave.db.shown_states import is_shown
from autoclave.db.tables import arqs, attach_handles, deployables, devices
from autoclave.rules.device_lifecycle import ACTIVE

Condition = sa.ColumnElement[bool]


def _relative(column: sa.Column[int]) -> Callable[[str], Condition]:
    other = deployables.alias()
    return lambda value: column.in_(sa.select(other.c.id).where(other.c.uuid == value))


def _attached_as(value: str) -> Condition:
    # as text, so that a type that does not exist is no error
    kind = sa.type_coerce(attach_handles.c.attach_type, sa.String)
    return deployables.c.id.in_(sa.select(attach_handles.c.deployable_id).where(kind == value))


def _held_by(value: str) -> Condition:
    holding = sa.select(arqs.c.deployable_id).where(arqs.c.instance_uuid == value, arqs.c.state.in_(list(ACTIVE)))
    return deployables.c.id.in_(holding)


_OF_DEPLOYABLE: Mapping[str, Callable[[str], Condition]] = {
    "name": lambda value: deployables.c.name == value,
    "parent_uuid": _relative(deployables.c.parent_id),
    "root_uuid": _relative(deployables.c.root_id),
    "interface_type": _attached_as,
    "instance_uuid": _held_by,
}

_OF_DEVICE: Mapping[str, Callable[[str], Condition]] = {
    "board": lambda value: devices.c.model == value,
    "availability": is_shown,
}

FIELDS = (*_OF_DEPLOYABLE, *_OF_DEVICE)
"""What can be filtered by."""


def device_matches(field: str, value: str) -> Condition:
    """The condition on ``devices`` that *field*, one of :data:`FIELDS`, be *value*."""
    if field in _OF_DEVICE:
        return _OF_DEVICE[field](value)
    return devices.c.id.in_(sa.select(deployables.c.device_id).where(_OF_DEPLOYABLE[field](value)))


def deployable_matches(field: str, value: str) -> Condition:
    """The same on ``deployables``."""
    if field in _OF_DEPLOYABLE:
        return _OF_DEPLOYABLE[field](value)
    return deployables.c.device_id.in_(sa.select(devices.c.id).where(_OF_DEVICE[field](value)))
