"""Apply the operator's provider configuration to the providers of a host.

This implements the provider-config-file specification. Each addition is recorded before it is written to Placement, and
removed from the record after it was removed there. So Autoclave always recognizes its own additions.

The files decide where instances may be scheduled. A file that users other than root and its reader can write is
refused.
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
from autoclave.rules.reclaim import RequestedBy

LOG = logging.getLogger(__name__)

OPTION = "[compute] provider_config_location"
_KEPT_DIGITS = 1e-5
"""Maximum relative difference of an allocation ratio: MariaDB keeps six digits of it."""


@dataclass(frozen=True)
class _Owned:
    """Describe what other parts of this agent write at a provider."""

    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()
    traits_only: bool = False


class ProviderAdditions:
    """Merge the provider configuration of a host into its tree.

    :param config: the configuration as read when the agent started.
    """

    def __init__(self, ports: Ports, config: ProviderConfig, host: str) -> None:
        self._ports = ports
        self._config = config
        self._host = host
        self._named = {each.uuid or (each.name or "").casefold() for each in config.entries}
        self._settled: tuple[object, ...] | None = None
        self._told: frozenset[object] = frozenset()
        self._unfinished: Mapping[str, str] = {}
        """Incomplete providers that were reported to the operator, by uuid, with the reason."""

    def sync(
        self,
        root: str,
        tree: Sequence[Provider],
        root_classes: frozenset[str],
        root_traits: frozenset[str],
        *,
        starting: bool,
    ) -> PlacementError | None:
        """Add what is configured, and remove what no longer is. This is the last step of a sync.

        The tree is skipped if the generations of the providers concerned have not changed since they were last
        verified.

        :param root_classes: classes that this agent itself writes at the root.
        :param starting: stop the agent on an entry that cannot be followed; later, log it once and skip it.
        :returns: why Placement is incomplete, or None. A class to be removed that is still in use is logged once per
            change instead, and is removed when it is free.
        :raises InvalidConfiguration: see *starting*.
        :raises PlacementError: Placement failed.
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
            devices = device_rows.list_all(tx, hostname=self._host, requested_by=RequestedBy.PROFILE)
            deployables = device_rows.deployables_of(tx, [device.id for device in devices])
        owned = {root: _Owned(root_classes, root_traits)}
        owned |= {each.rp_uuid: _Owned(frozenset({each.resource_class}), traits_only=True) for each in deployables}
        owned |= {row.uuid: _Owned(frozenset({row.resource_class}), row.trait_names) for row in functions}
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
        self._told = frozenset(told)  # a conflict that was resolved and recurs is reported again

    def _apply(self, rp_uuid: str, change: ProviderChange, remembered: frozenset[Addition]) -> bool:
        """Record additions, write them, and forget removed ones; return whether anything was written.

        Each class is removed separately, and last, so that a class in use does not prevent other changes. Such a class
        is reserved until it is free, so that no other instance gets it.

        :raises PlacementError: a change is incomplete.
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
        """Remove a class; return whether anything was written.

        :raises PlacementConflict: instances use the class, which is now fully reserved.
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
        """Write inventories; those of others are written back unchanged at the generation at which they were read.

        :param without: class to remove.
        :param reserve: class to reserve fully.
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
    """Return the inventory to write, with the ratio as rounded by Placement if it is still the same."""
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
"""Maximum size of a file."""

_SUFFIX = ".yaml"


def load(location: str, *, user: int | None = None) -> ProviderConfig:
    """Read every ``*.yaml`` file of a directory in lexicographic order, except hidden ones.

    :param location: ``[compute] provider_config_location``. If it is empty or does not exist, nothing is configured.
    :param user: uid that may own the files in addition to root; by default that of this process.
    :raises ProviderConfigFaults: the directory or its files are invalid; all faults are listed.
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
    """Read one file of any name.

    :raises ProviderConfigFaults: the file is invalid; all faults are listed.
    """
    return _parsed([path], None, [])


def _parsed(paths: Iterable[Path], user: int | None, faults: list[str]) -> ProviderConfig:
    """Parse the files into one configuration.

    :param faults: faults found before.
    :raises ProviderConfigFaults: there is any fault, including *faults*.
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
    """Return the text of a file.

    :raises ProviderConfigFaults: the file cannot be read, is too large, is no text, or is not trusted.
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
    """Open a file without blocking on a FIFO that has no writer."""
    return os.open(name, flags | os.O_NONBLOCK)


def _distrust(status: os.stat_result, user: int | None) -> Iterator[str]:
    """Yield the reasons why a file with this status is not trusted."""
    own = os.geteuid() if user is None else user
    if status.st_uid not in (0, own):
        yield f"belongs to uid {status.st_uid}; it must belong to root or to the user of the service, uid {own}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield f"can be written by others than its owner (mode {stat.S_IMODE(status.st_mode):04o}); use chmod go-w"


def _shown(path: Path) -> str:
    """Return *path* on one line, whatever its name."""
    text = str(path)
    return text if text.isprintable() else repr(text)
