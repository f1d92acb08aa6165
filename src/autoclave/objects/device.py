"""The device, as it travels with ``cleanup_device``."""

from datetime import datetime
from typing import Any

from oslo_utils import versionutils
from oslo_versionedobjects import fields

from autoclave.objects.base import AutoclaveObject, register
from autoclave.rules.device_lifecycle import DeviceState

CLEANED_TYPE = "NVME"
"""The one device type that is erased between two instances."""

_SINCE_1_3 = ("device_state", "state_version")


@register
class Device(AutoclaveObject):
    """A row of the devices table, without what only the database needs.

    ``state_version`` is the version the message was made for: whoever acts on the device swaps from
    exactly that version, so that a late or doubled message loses.

    Versions: 1.2, as the NVMe specification found it; 1.3 adds ``device_state`` (the specification)
    and ``state_version`` (ours).
    """

    VERSION = "1.3"

    fields = {  # noqa: RUF012 - oslo.versionedobjects reads it under this name and fills it per class
        "id": fields.IntegerField(),
        "uuid": fields.UUIDField(),
        "type": fields.StringField(),
        "vendor": fields.StringField(),
        "model": fields.StringField(),
        "std_board_info": fields.StringField(nullable=True),
        "vendor_board_info": fields.StringField(nullable=True),
        "hostname": fields.StringField(),
        "status": fields.EnumField(valid_values=("enabled", "maintaining")),
        "device_state": fields.EnumField(valid_values=tuple(state.value for state in DeviceState), nullable=True),
        "state_version": fields.IntegerField(),
        "created_at": fields.DateTimeField(nullable=True),
        "updated_at": fields.DateTimeField(nullable=True),
    }

    id: int
    uuid: str
    type: str
    vendor: str
    model: str
    std_board_info: str | None
    vendor_board_info: str | None
    hostname: str
    status: str
    device_state: str | None
    state_version: int
    created_at: datetime | None
    updated_at: datetime | None

    def obj_make_compatible(self, primitive: dict[str, Any], target_version: str) -> None:
        """Leave out of *primitive* what an agent of *target_version* does not know."""
        super().obj_make_compatible(primitive, target_version)
        if versionutils.convert_version_to_tuple(target_version) < (1, 3):
            for name in _SINCE_1_3:
                primitive.pop(name, None)

    @property
    def supports_cleaning(self) -> bool:
        """Whether the device is erased when its instance lets go of it (by type, as the specification says)."""
        return self.type == CLEANED_TYPE
