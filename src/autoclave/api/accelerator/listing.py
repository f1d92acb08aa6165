"""What a list of devices or deployables is asked for: filters, their order, a page.

``filters.field=F&filters.value=V``, once or several times, is how Cyborg's clients write a filter. As in
Cyborg, a list that is filtered comes with the newest row first, unless ``sort_key`` and ``sort_dir``, which
are among the fields, say otherwise; one that is not comes in order of the rows' ids.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import falcon

from autoclave.api import query
from autoclave.api.query import Argument, Page
from autoclave.api.schema import one_of
from autoclave.db.query import BY_ID, FIELDS, NEWEST_FIRST, Order
from autoclave.exceptions import BadRequest

_SORTING = ("sort_key", "sort_dir")
_KNOWN = (*FIELDS, *(argument.name for argument in query.PAGING), *_SORTING)
_FIELD = Argument("filters.field", "What to filter by, once for each filters.value.", one_of(_KNOWN), repeated=True)
_VALUE = Argument("filters.value", "What a field must be, in the order of the fields.", repeated=True)
ARGUMENTS = (_FIELD, _VALUE, *query.PAGING)
"""What every such list may be asked for."""


@dataclass(frozen=True)
class Listing:
    """:param own: values of the list's own arguments; :param related: values by field of ``db.filters``."""

    own: Mapping[str, str]
    related: Mapping[str, str]
    order: Order
    page: Page


def asked(req: falcon.Request, given: Mapping[str, str], *, sort_keys: Collection[str]) -> Listing:
    """What *req* asks for.

    :param given: its arguments other than the fields; those that do not page are filters.
    :raises BadRequest: a field is given twice, or cannot have its value.
    """
    fields = _fields(req)
    twice = fields.keys() & given.keys()
    if twice:
        raise BadRequest(f"{sorted(twice)[0]} is given as an argument and as a field.")
    for argument in query.PAGING:
        if argument.name in fields:
            argument.check(fields[argument.name])
    page = query.page({**given, **fields})
    paging = {argument.name for argument in query.PAGING}
    filters = {name: value for name, value in given.items() if name not in paging}
    related = {name: fields[name] for name in FIELDS if name in fields}
    return Listing(filters, related, _order(fields, bool(filters or fields), sort_keys), page)


def _fields(req: falcon.Request) -> dict[str, str]:
    names, values = req.get_param_as_list(_FIELD.name) or [], req.get_param_as_list(_VALUE.name) or []
    if len(names) != len(values):
        raise BadRequest(f"Each {_FIELD.name} needs a {_VALUE.name}: {len(names)} and {len(values)} were given.")
    fields: dict[str, str] = {}
    for name, value in zip(names, values, strict=True):
        if name in fields:
            raise BadRequest(f"{_FIELD.name} {name} is given more than once.")
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
