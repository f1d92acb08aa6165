"""Define the versioned objects and the context of a request.

The base of all versioned objects, and the serializer that carries them in RPC arguments and results.

Who asks, and under which request id.

The device, as it travels with ``cleanup_device``.
"""

from datetime import datetime
from typing import Any

from oslo_context import context
from oslo_utils import versionutils
from oslo_versionedobjects import base, fields

from autoclave.rules.device_lifecycle import DeviceState

NAMESPACE = "autoclave"

register = base.VersionedObjectRegistry.register
"""Class decorator: makes an object known to the serializer, under its name and version."""


class AutoclaveObject(base.VersionedObject):  # type: ignore[misc]
    """An object whose wire form carries its name, version and the fields that are set.

    Both namespaces are needed: the first is looked for when an object is read, the second is the
    prefix of the keys it is written under.
    """

    OBJ_PROJECT_NAMESPACE = NAMESPACE
    OBJ_SERIAL_NAMESPACE = NAMESPACE


class AutoclaveSerializer(base.VersionedObjectSerializer):  # type: ignore[misc]
    """Turns objects into primitives and back, also inside lists and dictionaries.

    Reading an object of a newer version than this side knows raises
    ``oslo_versionedobjects.exception.IncompatibleObjectVersion``.
    """

    OBJ_BASE_CLASS = AutoclaveObject


class RequestContext(context.RequestContext):  # type: ignore[misc]
    """The context of one request, from the API through the conductor to the agent.

    Made by ``RequestContext.from_environ(environ)`` in the API, by :meth:`from_dict` where a message
    arrives, and by :meth:`admin` for work that no user asked for. Making one also makes it the
    thread's current context, so that log lines carry its request id.
    """

    FROM_DICT_EXTRA_KEYS = ["service_roles"]  # noqa: RUF012 - the library's own hook

    request_id: str
    user_id: str | None
    project_id: str | None
    roles: list[str]
    service_roles: list[str]

    def to_dict(self) -> dict[str, Any]:
        """The context as JSON-serialisable values. Tokens stay here: no service uses a caller's token."""
        values: dict[str, Any] = super().to_dict()
        del values["auth_token"]
        values["service_roles"] = list(self.service_roles)
        return values

    @classmethod
    def admin(cls, request_id: str | None = None) -> "RequestContext":
        """A context for the system's own work, with a new request id unless *request_id* is given."""
        return cls(is_admin=True, roles=["admin"], request_id=request_id)


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
