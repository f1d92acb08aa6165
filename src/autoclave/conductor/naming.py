"""How a flavor and an image are named to ``autoclave explain``: what a word means, and which words to say."""

import shlex

from sqlalchemy.engine import Connection

from autoclave.db import flavors as flavor_rows
from autoclave.db import images as image_rows
from autoclave.db.flavors import FlavorRecord
from autoclave.db.images import ImageRecord
from autoclave.db.instances import InstanceRecord


def flavor_called(tx: Connection, key: str) -> FlavorRecord | None:
    """The flavor whose id is *key*, or else whose name is."""
    return flavor_rows.get(tx, key) or flavor_rows.find(tx, key)


def images_called(tx: Connection, key: str) -> list[ImageRecord]:
    """The image whose uuid is *key*, or else all whose name is."""
    known = image_rows.get(tx, key)
    return [known] if known else image_rows.list_for(tx, filters={"name": key})


def explain_command(tx: Connection, instance: InstanceRecord) -> str:
    """The command that explains where an instance could go, to be pasted into a shell.

    Flavor and image are named by their names; by id and uuid where the name means another one, or several.
    """
    words = [_flavor_word(tx, instance), _image_word(tx, instance)]
    if any(word.startswith("-") for word in words):
        words.insert(0, "--")
    if instance.requested_host is not None:
        words = [f"--host={instance.requested_host}", *words]
    return f"autoclave explain {shlex.join(words)}"


def _flavor_word(tx: Connection, instance: InstanceRecord) -> str:
    flavorid, name = str(instance.flavor["flavorid"]), str(instance.flavor["name"])
    found = flavor_called(tx, name)
    return name if found is not None and found.flavorid == flavorid else flavorid


def _image_word(tx: Connection, instance: InstanceRecord) -> str:
    name = instance.image["name"]
    if name and [each.uuid for each in images_called(tx, name)] == [instance.image_uuid]:
        return str(name)
    return instance.image_uuid
