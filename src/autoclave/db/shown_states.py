"""``rules.reserved.shown_state`` in SQL."""

from collections.abc import Iterable, Mapping

import sqlalchemy as sa

from autoclave.db.tables import DeviceStatus, devices
from autoclave.rules.device_lifecycle import DeviceState, Withheld

_IS_SET: Mapping[Withheld, sa.ColumnElement[bool]] = {
    Withheld.MISSING: devices.c.missing.is_(True),
    Withheld.EXCLUDED: devices.c.excluded_reason.is_not(None),
    Withheld.UNREADABLE: devices.c.unreadable_reason.is_not(None),
    Withheld.HELD: sa.or_(devices.c.held.is_(True), devices.c.forgetting.is_(True)),
    Withheld.MAINTAINING: sa.or_(devices.c.status == DeviceStatus.MAINTAINING, devices.c.host_maintained.is_(True)),
}


def _shown(reasons: Iterable[Withheld]) -> sa.ColumnElement[str]:
    available = devices.c.device_state == DeviceState.AVAILABLE
    # The column as text: no CAST, whose result MariaDB compares without case.
    return sa.case(
        *((sa.and_(available, _IS_SET[why]), sa.literal(why.value, sa.String)) for why in reasons),
        else_=sa.type_coerce(devices.c.device_state, sa.String),
    )


_SHOWN = _shown(Withheld)
SHOWN_BESIDE_STATUS = _shown(why for why in Withheld if why is not Withheld.MAINTAINING)
"""The state that a device is shown with next to ``status``, which alone says maintenance."""


def is_shown(state: str) -> sa.ColumnElement[bool]:
    """Return the condition that a device is shown with *state*."""
    return _SHOWN.in_((state,))
