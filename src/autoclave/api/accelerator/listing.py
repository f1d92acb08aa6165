"""What a list of devices or deployables is asked for: filters, their order, a page.

``filters.field=F&filters.value=V``, once or several times, is how Cyborg's clients write a filter. As in
Cyborg, a list that is filtered comes with the newest row first, unless ``sort_key`` and ``sort_dir``, which
are among the fields, say otherwise; one that is not comes in order of the rows' ids.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import falcon

from autoclave.api import query
from autoclave.api.query import Page
from autoclave.db.filters import FIELDS
from autoclave.db.paging import BY_ID, NEWEST_FIRST, Order
from autoclave.exceptions import BadRequest

_FIELD, _VALUE = "filters.field", "filters.value"
_SORTING = ("sort_key", "sort_dir")


@dataclass(frozen=True)
class Listing:
    """:param own: values of the list's own arguments; :param related: values by field of ``db.filters``."""

    own: Mapping[str, str]
    related: Mapping[str, str]
    order: Order
    page: Page


def asked(req: falcon.Request, *own: str, sort_keys: Collection[str]) -> Listing:
    """What *req* asks for.

    :param own: arguments that filter, beside the fields.
    :raises BadRequest: an argument or a field is not known, is given twice, or cannot have its value.
    """
    given = query.arguments(req, *own, *query.PAGING, apart=(_FIELD, _VALUE))
    fields = _fields(req)
    twice = fields.keys() & given.keys()
    if twice:
        raise BadRequest(f"{sorted(twice)[0]} is given as an argument and as a field.")
    page = query.page({**given, **fields})
    filters = {name: given[name] for name in own if name in given}
    related = {name: fields[name] for name in FIELDS if name in fields}
    return Listing(filters, related, _order(fields, bool(filters or fields), sort_keys), page)


def _fields(req: falcon.Request) -> dict[str, str]:
    names, values = req.get_param_as_list(_FIELD) or [], req.get_param_as_list(_VALUE) or []
    if len(names) != len(values):
        raise BadRequest(f"Each {_FIELD} needs a {_VALUE}: {len(names)} and {len(values)} were given.")
    fields: dict[str, str] = {}
    for name, value in zip(names, values, strict=True):
        known = (*FIELDS, *query.PAGING, *_SORTING)
        if name not in known:
            raise BadRequest(f"{_FIELD} can be {', '.join(known)}, not {name!r}.")
        if name in fields:
            raise BadRequest(f"{_FIELD} {name} is given more than once.")
        if not value.isprintable():
            raise BadRequest(f"The value of {_FIELD} {name} holds a control character.")
        fields[name] = value
    return fields


def _order(fields: Mapping[str, str], filtered: bool, sort_keys: Collection[str]) -> Order:
    default = NEWEST_FIRST if filtered else BY_ID
    key = fields.get("sort_key", default.key)
    if key != default.key and key not in sort_keys:
        raise BadRequest(f"sort_key can be {', '.join(sort_keys)}, not {key!r}.")
    direction = fields.get("sort_dir")
    if direction not in (None, "asc", "desc"):
        raise BadRequest(f"sort_dir can be asc or desc, not {direction!r}.")
    return Order(key, default.descending if direction is None else direction == "desc")
