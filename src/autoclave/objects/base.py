"""Define the versioned objects and the context of a request."""

from datetime import datetime
from typing import Any

from oslo_context import context
from oslo_utils import versionutils
from oslo_versionedobjects import base, fields

from autoclave.rules.device_lifecycle import DeviceState

NAMESPACE = "autoclave"

register = base.VersionedObjectRegistry.register
"""Registers a class at the serializer, under its name and version; use it as a decorator."""


class AutoclaveObject(base.VersionedObject):  # type: ignore[misc]
    """Represent an object whose wire form contains its name, its version and the fields that are set.

    Both namespaces are needed: the first is read from incoming objects, and the second prefixes the written keys.
    """

    OBJ_PROJECT_NAMESPACE = NAMESPACE
    OBJ_SERIAL_NAMESPACE = NAMESPACE


class AutoclaveSerializer(base.VersionedObjectSerializer):  # type: ignore[misc]
    """Convert objects into primitives and back, also inside lists and dictionaries.

    An object of an unsupported newer version raises ``oslo_versionedobjects.exception.IncompatibleObjectVersion``.
    """

    OBJ_BASE_CLASS = AutoclaveObject


class RequestContext(context.RequestContext):  # type: ignore[misc]
    """Hold the context of one request, from the API through the conductor to the agent.

    The API creates it by ``RequestContext.from_environ(environ)``, the receiver of a message by :meth:`from_dict`, and
    internal work by :meth:`admin`. A new one also becomes the thread's current context, so that log lines contain its
    request id.
    """

    FROM_DICT_EXTRA_KEYS = ["service_roles"]  # noqa: RUF012 - the library's own hook

    request_id: str
    user_id: str | None
    project_id: str | None
    roles: list[str]
    service_roles: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the context as JSON-serialisable values, without tokens: no service uses a caller's token."""
        values: dict[str, Any] = super().to_dict()
        del values["auth_token"]
        values["service_roles"] = list(self.service_roles)
        return values

    @classmethod
    def admin(cls, request_id: str | None = None) -> "RequestContext":
        """Create a context for the system's own work, with a new request id unless *request_id* is given."""
        return cls(is_admin=True, roles=["admin"], request_id=request_id)


_SINCE_1_3 = ("device_state", "state_version")


@register
class Device(AutoclaveObject):
    """Represent a row of the devices table, without fields that only the database needs.

    ``state_version`` is the version for which the message was created. The receiver's transition requires exactly that
    version, so a late or duplicate message fails.

    Versions: 1.2 precedes the NVMe specification; 1.3 adds ``device_state`` (from the specification) and
    ``state_version`` (an addition); 1.4 adds the state ``spent``, which an older receiver reads as ``error``.
    """

    VERSION = "1.4"

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
        """Remove the fields that an agent of *target_version* does not know from *primitive*."""
        super().obj_make_compatible(primitive, target_version)
        version = versionutils.convert_version_to_tuple(target_version)
        if version < (1, 4) and primitive.get("device_state") == DeviceState.SPENT.value:
            primitive["device_state"] = DeviceState.ERROR.value
        if version < (1, 3):
            for name in _SINCE_1_3:
                primitive.pop(name, None)
