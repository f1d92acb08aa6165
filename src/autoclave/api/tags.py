"""Tags of servers and of images: given and taken one by one, and searched by."""

from collections.abc import Iterable, Sequence

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from autoclave.api.body import shortened
from autoclave.exceptions import BadRequest, NotFound


def with_tag(tags: Sequence[str], tag: str, validator: Draft202012Validator, most: int) -> list[str]:
    """*tags* and *tag*, once.

    :param validator: of one tag; its ``x-message`` completes "The tag …".
    :raises BadRequest: *tag* can be none, or there would be more than *most*.
    """
    if tag in tags:
        return list(tags)
    error = best_match(validator.iter_errors(tag))
    if error is not None:
        raise BadRequest(f"The tag {shortened(repr(tag))} {error.schema['x-message']}.")
    if len(tags) >= most:
        raise BadRequest(f"There are {len(tags)} tags already; {most} is the most.")
    return [*tags, tag]


def without_tag(tags: Sequence[str], tag: str) -> list[str]:
    """*tags* but for *tag*.

    :raises NotFound: it is not among them.
    """
    require_tag(tags, tag)
    return [other for other in tags if other != tag]


def asked_for(tags: Iterable[str], option: str, most: int) -> list[str]:
    """The tags by which a list is searched, each once. An engine does not take a query of any number of them.

    :param option: of the query that names them.
    :param most: as many as one of what is searched may have.
    :raises BadRequest: there are more.
    """
    found = list(dict.fromkeys(tags))
    if len(found) > most:
        raise BadRequest(f'The argument "{option}" names {len(found)} tags; {most} is the most.')
    return found


def require_tag(tags: Sequence[str], tag: str) -> None:
    """See to it that *tag* is one of *tags*.

    :raises NotFound: it is not.
    """
    if tag not in tags:
        raise NotFound(f"There is no tag {tag} here.")
