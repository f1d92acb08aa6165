"""Apply the operator's provider configuration to the providers of a host.

What the operator's provider config adds to the providers of a host (provider-config-file specification).

Each addition is remembered before it is written to Placement, and forgotten after it was taken away there: so that
what is ours is always known as ours.

Provider configuration from the files of a directory.

What they say decides where instances may go, so they have to come from root or from the user that reads them: a file
that anybody else could have written is refused.
"""

import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from oslo_log import log as logging

from autoclave.db import devices as device_rows
from autoclave.db import pci
from autoclave.db.pci import Addition, AdditionKind
from autoclave.exceptions import InvalidConfiguration, PlacementConflict, PlacementError, ProviderConfigFaults
from autoclave.lifecycle.ports import Ports
from autoclave.placement.provider_tree import IN_USE, change_inventories, change_traits
from autoclave.placement.records import Inventory, Provider
from autoclave.rules.provider_config import (
    COMPUTE_NODE,
    AddedInventory,
    Conflict,
    Merge,
    ProviderChange,
    ProviderConfig,
    ProviderEntry,
    TreeProvider,
    merge,
    parse,
)

LOG = logging.getLogger(__name__)

OPTION = "[compute] provider_config_location"
_KEPT_DIGITS = 1e-5
"""How far a ratio may be from what was written: Placement's column has no more than six digits of it in MariaDB."""


@dataclass(frozen=True)
class _Owned:
    """What other parts of this agent write at a provider."""

    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()
    traits_only: bool = False


class ProviderAdditions:
    """Merges the provider config of a host into its tree.

    :param config: read when the agent started.
    """

    def __init__(self, ports: Ports, config: ProviderConfig, host: str) -> None:
        self._ports = ports
        self._config = config
        self._host = host
        self._named = {each.uuid or (each.name or "").casefold() for each in config.entries}
        self._settled: tuple[object, ...] | None = None
        self._told: frozenset[object] = frozenset()
        self._unfinished: Mapping[str, str] = {}
        """What the operator has been told of providers of which not all is done, by their uuids."""

    def sync(
        self,
        root: str,
        tree: Sequence[Provider],
        root_classes: frozenset[str],
        root_traits: frozenset[str],
        *,
        starting: bool,
    ) -> PlacementError | None:
        """Add what is configured, and take away what no longer is. The last thing of a sync.

        A tree in which the providers concerned are at the generations at which all was found right is not looked at.

        :param root_classes: what this agent itself writes at the root.
        :param starting: an entry that cannot be followed stops the agent; later it is logged, once, and left out.
        :returns: why Placement does not have all of it yet, if so. A class that is to go and is in use is no such
            reason: it is told, once for each time that this changes, and goes when it is given back.
        :raises InvalidConfiguration: see *starting*.
        :raises PlacementError: Placement could not be asked.
        """
        with self._ports.db.read() as tx:
            remembered = pci.of_host(tx, self._host)
        if not self._config.entries and not remembered:
            return None
        concerned = [each for each in tree if self._concerns(each, root, remembered)]
        state = (remembered, tuple((each.uuid, each.name, each.generation) for each in concerned))
        if state == self._settled:
            return None
        owned = self._owned(root, root_classes, root_traits)
        merged = merge(
            self._config,
            [self._tree_provider(each, each in concerned, root, owned, remembered) for each in tree],
        )
        self._tell(merged, starting)
        failure: PlacementError | None = None
        wrote = False
        unfinished: dict[str, str] = {}
        for rp_uuid, change in merged.changes.items():
            try:
                wrote = self._apply(rp_uuid, change, remembered) or wrote
            except PlacementError as error:
                unfinished[rp_uuid] = str(error)
                if not isinstance(error, PlacementConflict) or error.code != IN_USE:
                    failure = error
                if self._unfinished.get(rp_uuid) != str(error):
                    LOG.warning("What is configured for provider %s is not all done yet: %s", rp_uuid, error)
        self._unfinished = unfinished
        self._forget_gone(remembered, tree)
        self._settled = None if unfinished or wrote else state
        return failure

    def _concerns(self, provider: Provider, root: str, remembered: Iterable[Addition]) -> bool:
        return (
            not self._named.isdisjoint([provider.uuid.lower(), provider.name.casefold()])
            or any(each.rp_uuid == provider.uuid for each in remembered)
            or (provider.uuid == root and COMPUTE_NODE in self._named)
        )

    def _owned(self, root: str, root_classes: frozenset[str], root_traits: frozenset[str]) -> dict[str, _Owned]:
        with self._ports.db.read() as tx:
            functions = pci.providers(tx, self._host)
            devices = device_rows.list_all(tx, hostname=self._host)
            deployables = device_rows.deployables_of(tx, [device.id for device in devices])
        owned = {root: _Owned(root_classes, root_traits)}
        owned |= {row.uuid: _Owned(frozenset({row.resource_class}), row.trait_names) for row in functions}
        owned |= {each.rp_uuid: _Owned(frozenset({each.resource_class}), traits_only=True) for each in deployables}
        return owned

    def _tree_provider(
        self,
        provider: Provider,
        concerned: bool,
        root: str,
        owned: Mapping[str, _Owned],
        remembered: Iterable[Addition],
    ) -> TreeProvider:
        own = owned.get(provider.uuid, _Owned())
        if not concerned:
            return TreeProvider(provider.uuid, provider.name)
        placement = self._ports.placement
        mine = [each for each in remembered if each.rp_uuid == provider.uuid]
        return TreeProvider(
            uuid=provider.uuid,
            name=provider.name,
            is_compute_node=provider.uuid == root,
            classes=frozenset(placement.get_inventories(provider.uuid).records),
            traits=placement.get_traits(provider.uuid).names,
            owned_classes=own.classes,
            owned_traits=own.traits,
            remembered_classes=frozenset(each.name for each in mine if each.kind is AdditionKind.INVENTORY),
            remembered_traits=frozenset(each.name for each in mine if each.kind is AdditionKind.TRAIT),
            traits_only=own.traits_only,
        )

    def _tell(self, merged: Merge, starting: bool) -> None:
        if starting and merged.conflicts:
            raise InvalidConfiguration("; ".join(str(each) for each in merged.conflicts), option=OPTION)
        told: set[Conflict | ProviderEntry] = set()
        for conflict in merged.conflicts:
            told.add(conflict)
            if conflict not in self._told:
                LOG.warning("%s; the entry is not followed in that", conflict)
        for entry in merged.absent:
            told.add(entry)
            if entry not in self._told:
                LOG.warning("%s: there is no provider %r on this host", entry.place, entry.provider)
        self._told = frozenset(told)  # what was put right and is wrong again, is told again

    def _apply(self, rp_uuid: str, change: ProviderChange, remembered: frozenset[Addition]) -> bool:
        """Remember, write, forget; returns whether anything was written.

        Each class that goes is taken away by itself, and last: one that instances use keeps nothing else away. It is
        reserved until it is unused, so that no other instance gets it.

        :raises PlacementError: not all of it is done.
        """
        new = _additions(rp_uuid, change.inventories, change.traits) - remembered
        if new:
            self._ports.db.transact(lambda tx: pci.remember(tx, self._host, new))
        wrote = self._write_traits(rp_uuid, change)
        forgot = self._forget(_additions(rp_uuid, (), change.forgotten_traits) & remembered)
        wrote = self._write_inventories(rp_uuid, change.inventories) or wrote
        failure: PlacementConflict | None = None
        for name in sorted(change.forgotten_classes):
            try:
                if name in change.removed_classes:
                    wrote = self._remove(rp_uuid, name) or wrote
            except PlacementConflict as error:
                failure = error
                continue
            forgot = self._forget(_additions(rp_uuid, (name,), ()) & remembered) or forgot
        if failure is not None:
            raise failure
        return wrote or forgot or bool(new)

    def _forget(self, forgotten: frozenset[Addition]) -> bool:
        if forgotten:
            self._ports.db.transact(lambda tx: pci.forget(tx, self._host, forgotten))
        return bool(forgotten)

    def _write_traits(self, rp_uuid: str, change: ProviderChange) -> bool:
        def wanted(known: frozenset[str]) -> frozenset[str]:
            return (known - change.removed_traits) | change.traits

        return change_traits(self._ports.placement, rp_uuid, wanted).wrote

    def _remove(self, rp_uuid: str, name: str) -> bool:
        """Take a class away; returns whether anything was written.

        :raises PlacementConflict: instances use it: all of it is reserved.
        """
        try:
            return self._write_inventories(rp_uuid, {}, without=name)
        except PlacementConflict as error:
            if error.code == IN_USE:
                self._write_inventories(rp_uuid, {}, reserve=name)
            raise

    def _write_inventories(
        self, rp_uuid: str, added: Mapping[str, AddedInventory], *, without: str = "", reserve: str = ""
    ) -> bool:
        """What others have at the provider is written back as it was read, at the generation at which it was read.

        :param without: the class that goes.
        :param reserve: the class of which nothing more is to be allocated.
        """

        def wanted(known: Mapping[str, Inventory]) -> Mapping[str, Inventory]:
            kept = {
                name: replace(record, reserved=record.total) if name == reserve else record
                for name, record in known.items()
                if name != without
            }
            return kept | {name: _record(each, known.get(name)) for name, each in added.items()}

        return change_inventories(self._ports.placement, rp_uuid, wanted) is None

    def _forget_gone(self, remembered: frozenset[Addition], tree: Sequence[Provider]) -> None:
        there = {each.uuid for each in tree}
        self._forget(frozenset(each for each in remembered if each.rp_uuid not in there))


def _additions(rp_uuid: str, classes: Iterable[str], traits: Iterable[str]) -> frozenset[Addition]:
    return frozenset(
        [Addition(rp_uuid, AdditionKind.INVENTORY, name) for name in classes]
        + [Addition(rp_uuid, AdditionKind.TRAIT, name) for name in traits]
    )


def _record(added: AddedInventory, known: Inventory | None) -> Inventory:
    """What is to be written; its ratio as Placement has kept it, where it has."""
    record = Inventory(
        total=added.total,
        reserved=added.reserved,
        min_unit=added.min_unit,
        max_unit=added.max_unit,
        step_size=added.step_size,
        allocation_ratio=added.allocation_ratio,
    )
    if known and math.isclose(known.allocation_ratio, added.allocation_ratio, rel_tol=_KEPT_DIGITS):
        return replace(record, allocation_ratio=known.allocation_ratio)
    return record


MAX_FILE_BYTES = 1 << 20
"""The largest file that is read."""

_SUFFIX = ".yaml"


def load(location: str, *, user: int | None = None) -> ProviderConfig:
    """Read every ``*.yaml`` file of a directory, in lexicographic order; hidden ones are left out.

    :param location: ``[compute] provider_config_location``. Where there is nothing of that name, or none is given,
        nothing is configured.
    :param user: uid that may own the files besides root; by default the one of this process.
    :raises ProviderConfigFaults: with everything that is wrong with the directory and its files.
    """
    if not location:
        return ProviderConfig()
    directory = Path(location)
    try:
        distrust = [f"{_shown(directory)}: {why}" for why in _distrust(directory.stat(), user)]
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        LOG.info("There is no %s: nothing is added to resource providers", _shown(directory))
        return ProviderConfig()
    except OSError as e:
        raise ProviderConfigFaults([f"{_shown(directory)}: cannot be read: {e.strerror}"]) from None
    for name in names:
        if name.endswith(".yml"):
            LOG.warning("%s is not read: only names that end in %s are", _shown(directory / name), _SUFFIX)
    wanted = (directory / name for name in names if name.endswith(_SUFFIX) and not name.startswith("."))
    return _parsed(wanted, user, distrust)


def load_file(path: Path) -> ProviderConfig:
    """Read one file, whatever its name.

    :raises ProviderConfigFaults: with everything that is wrong with it.
    """
    return _parsed([path], None, [])


def _parsed(paths: Iterable[Path], user: int | None, faults: list[str]) -> ProviderConfig:
    """What the files say.

    :param faults: what is known to be wrong already.
    :raises ProviderConfigFaults: with these and everything else.
    """
    texts = {}
    for path in paths:
        try:
            texts[_shown(path)] = _text(path, user)
        except ProviderConfigFaults as e:
            faults += e.faults
    try:
        config = parse(texts)
    except ProviderConfigFaults as e:
        faults += e.faults
    if faults:
        raise ProviderConfigFaults(faults)
    for note in config.notes:
        LOG.warning("%s", note)
    return config


def _text(path: Path, user: int | None) -> str:
    """The text of a file.

    :raises ProviderConfigFaults: it cannot be read, is too large or no text, or is not to be trusted.
    """
    name = _shown(path)
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ProviderConfigFaults([f"{name}: is not a regular file"])
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as e:
        raise ProviderConfigFaults([f"{name}: cannot be read: {e.strerror}"]) from None
    faults = [f"{name}: {why}" for why in _distrust(status, user)]
    text = ""
    if len(raw) > MAX_FILE_BYTES:
        faults.append(f"{name}: is larger than {MAX_FILE_BYTES} bytes; split it")
    else:
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as e:
            line = raw.count(b"\n", 0, e.start) + 1
            faults.append(f"{name}:{line}: is not UTF-8: byte {e.start} cannot be decoded")
    if faults:
        raise ProviderConfigFaults(faults)
    return text


def _open_at_once(name: str, flags: int) -> int:
    """Open without waiting: a FIFO would not open before somebody writes into it."""
    return os.open(name, flags | os.O_NONBLOCK)


def _distrust(status: os.stat_result, user: int | None) -> Iterator[str]:
    """Why what has this status may not say where instances go."""
    own = os.geteuid() if user is None else user
    if status.st_uid not in (0, own):
        yield f"belongs to uid {status.st_uid}; it must belong to root or to the user of the service, uid {own}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield f"can be written by others than its owner (mode {stat.S_IMODE(status.st_mode):04o}); use chmod go-w"


def _shown(path: Path) -> str:
    """*path* in one line, whatever its name."""
    text = str(path)
    return text if text.isprintable() else repr(text)
