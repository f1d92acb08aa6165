"""Parse the texts of the files into entries, or report all their faults."""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

from autoclave.exceptions import ProviderConfigFaults
from autoclave.rules.located_yaml import Found, Located, Path, Unreadable, read, shown
from autoclave.rules.provider_config import model
from autoclave.rules.provider_config.model import COMPUTE_NODE, AddedInventory, Place, ProviderConfig, ProviderEntry

_DEFAULTS: Mapping[str, Any] = {
    name: field.get("default") for name, field in model.SCHEMA["$defs"]["inventory"]["properties"].items()
}
"""The defaults of an inventory's fields. ``total`` is required, so its None is never used."""


MAX_FAULTS = 100
"""The most faults, and ignored fields, to report."""

_MORE = f"There is more than that: these are the first {MAX_FAULTS}. Mend them first"


def parse(files: Mapping[str, str]) -> ProviderConfig:
    """Parse the files in the given order.

    :param files: text by name; the names are for messages.
    :raises ProviderConfigFaults: contains every fault of every file, or the first :data:`MAX_FAULTS`.
    """
    entries: list[ProviderEntry] = []
    faults: list[str] = []
    notes: list[str] = []
    for file, text in files.items():
        with _without_collector():
            understood = _understand(file, text)
        entries += understood.entries
        faults += (_line(file, found) for found in understood.faults)
        notes += (_line(file, found) for found in understood.notes)
    faults += islice(_given_twice(entries), MAX_FAULTS + 1)
    if faults:
        raise ProviderConfigFaults(_bounded(faults))
    return ProviderConfig(tuple(entries), tuple(_bounded(notes)))


@contextmanager
def _without_collector() -> Iterator[None]:
    """Pause the cyclic garbage collector.

    It would traverse the growing tree of a large file repeatedly, which takes longer than all other work. The size of a
    file is limited, and so is the memory.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _bounded(lines: list[str]) -> list[str]:
    return lines if len(lines) <= MAX_FAULTS else [*lines[:MAX_FAULTS], _MORE]


class _Understood(NamedTuple):
    entries: list[ProviderEntry]
    faults: list[Found]
    notes: list[Found]


def _understand(file: str, text: str) -> _Understood:
    """Parse one file. All valid parts become entries, so that their other faults are found as well."""
    try:
        document, faults = read(text)
        faults += model.faults(document, MAX_FAULTS + 1)
    except Unreadable as e:
        return _Understood([], [e.found], [])
    if len(faults) > MAX_FAULTS:  # which other parts are valid is unknown
        return _Understood([], sorted(faults), [])
    sound = _Sound(file, faults)
    providers = document.children.get("providers")
    listed = providers.children if providers is not None and isinstance(providers.value, list) else {}
    entries = [made for number, each in listed.items() if (made := sound.entry(each, ("providers", number)))]
    faults += sound.faults
    notes = [] if faults else list(islice(model.unknown(document), MAX_FAULTS + 1))
    return _Understood(entries, sorted(faults), notes)


class _Sound:
    """Convert those parts of a file that passed the schema into entries.

    :ivar faults: their other faults.
    """

    def __init__(self, file: str, faults: list[Found]) -> None:
        self._file = file
        self._wrong = {each.path[:length] for each in faults for length in range(len(each.path) + 1)}
        self.faults: list[Found] = []

    def entry(self, entry: Located, path: Path) -> ProviderEntry | None:
        """Return the entry at *path*, or None if its provider is unknown."""
        inventories = self._inventories(entry, path)
        identification = entry.children.get("identification")
        if identification is None or (*path, "identification") in self._wrong:
            return None
        uuid, name = (identification.value.get(key) for key in ("uuid", "name"))
        if COMPUTE_NODE in (uuid, name):
            uuid, name = COMPUTE_NODE, None
        elif uuid:
            uuid = uuid.lower()
        return ProviderEntry(self._place(entry, path), uuid, name, inventories, self._traits(entry, path))

    def _traits(self, entry: Located, path: Path) -> dict[str, Place]:
        where = (*path, "traits", "additional")
        return {
            trait.value: self._place(trait, (*where, number))
            for number, trait in _additional(entry, "traits").items()
            if isinstance(number, int) and (*where, number) not in self._wrong
        }

    def _inventories(self, entry: Located, path: Path) -> dict[str, AddedInventory]:
        made: dict[str, AddedInventory] = {}
        for name, record, where in _records(entry, (*path, "inventories", "additional")):
            self._blame(record, where, "reserved", "total")
            self._blame(record, where, "min_unit", "max_unit")
            if name in made:
                message = f"has an inventory already, in line {made[name].place.line}; keep one of them"
                self.faults.append(Found(record.line, where, message))
            elif where not in self._wrong:
                values = {field: record.value.get(field, default) for field, default in _DEFAULTS.items()}
                ratio = float(values.pop("allocation_ratio"))
                numbers = {field: int(value) for field, value in values.items()}
                made[name] = AddedInventory(**numbers, allocation_ratio=ratio, place=self._place(record, where))
        return made

    def _blame(self, record: Located, path: Path, lesser: str, greater: str) -> None:
        """Report the first field if it exceeds the second, where both passed the schema."""
        if not isinstance(record.value, dict) or not self._wrong.isdisjoint([(*path, lesser), (*path, greater)]):
            return
        value, limit = (record.value.get(field, _DEFAULTS[field]) for field in (lesser, greater))
        if limit is not None and value > limit:
            line = record.at((lesser,)).line
            self.faults.append(Found(line, (*path, lesser), f"must not be more than {greater}, which is {limit}"))

    def _place(self, value: Located, path: Path) -> Place:
        return Place(self._file, value.line, shown(path))


def _additional(entry: Located, section: str) -> Mapping[str | int, Located]:
    """Return the members of *section*'s ``additional``; empty without one."""
    found = entry.children.get(section)
    found = found and found.children.get("additional")
    return found.children if found else {}


def _records(entry: Located, path: Path) -> Iterator[tuple[str, Located, Path]]:
    """Yield resource class, inventory and path of all members of ``inventories``, in either shape."""
    for key, value in _additional(entry, "inventories").items():
        if isinstance(key, str):
            yield key, value, (*path, key)
        else:
            yield from (
                (name, each, (*path, key, name)) for name, each in value.children.items() if isinstance(name, str)
            )


def _given_twice(entries: list[ProviderEntry]) -> Iterator[str]:
    first: dict[tuple[str | None, str | None], Place] = {}
    for entry in entries:
        known = first.setdefault(entry.key, entry.place)
        if known is not entry.place:
            yield f"{entry.place}: {entry.provider!r} has an entry already, at {known}; merge the two"


def _line(file: str, found: Found) -> str:
    return f"{Place(file, found.line, shown(found.path))}: {found.message}"
