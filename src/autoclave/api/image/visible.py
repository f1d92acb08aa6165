"""Whose images a caller sees and may change: those of his project, and public ones to look at and to use."""

from sqlalchemy.engine import Connection

from autoclave.api import uuids
from autoclave.db import images as image_rows
from autoclave.db.images import ImageRecord
from autoclave.exceptions import Forbidden, NotFound
from autoclave.objects.base import RequestContext


def find(tx: Connection, context: RequestContext, image: str, *, lock: bool = False) -> ImageRecord:
    """The image that the caller knows as *image*.

    :raises NotFound: there is none that he may see; a name is none.
    """
    uuid = uuids.canonical(image)
    found = None if uuid is None else image_rows.get(tx, uuid, lock=lock)
    if found is None or not (context.is_admin or found.visibility == image_rows.PUBLIC or _owns(context, found)):
        raise NotFound(f"No image found with ID {image}")
    return found


def find_own(tx: Connection, context: RequestContext, image: str) -> ImageRecord:
    """As :func:`find`, to be changed: its row is locked.

    :raises Forbidden: it is another project's.
    """
    found = find(tx, context, image, lock=True)
    if not (context.is_admin or _owns(context, found)):
        raise Forbidden(f"Image {image} belongs to another project.")
    return found


def _owns(context: RequestContext, image: ImageRecord) -> bool:
    # "no project" must not turn into "an image of no project"
    return context.project_id is not None and image.owner == context.project_id
