"""The base of all versioned objects, and the serializer that carries them in RPC arguments and results."""

from oslo_versionedobjects import base

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
