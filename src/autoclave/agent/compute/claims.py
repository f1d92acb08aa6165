"""Claim devices of one host for instances by their flavors (one-time-use specification)."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.db import devices, pci
from autoclave.db.devices import DeviceRecord
from autoclave.db.pci import FunctionRecord, ProviderRecord
from autoclave.exceptions import ClaimRefused, StateConflict, TraitsMissing
from autoclave.lifecycle import claims
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.reserve import settle
from autoclave.lifecycle.transitions import Cause
from autoclave.placement.records import ConsumerAllocations
from autoclave.rules.device_lifecycle import Actor, DeviceState, must_be_reserved
from autoclave.rules.resource_request import ALIAS_KEY

LOG = logging.getLogger(__name__)


class ResourceTracker:
    """Assign the functions of a host to its instances, and take them back.

    Concurrent claims are safe: each provider's row is locked while it is claimed from.
    """

    def __init__(self, ports: Ports, host: str) -> None:
        self._ports = ports
        self._host = host

    def instance_claim(
        self,
        instance_uuid: str,
        allocation: ConsumerAllocations,
        groups: Mapping[str, Sequence[str]],
        *,
        at_least: int = 0,
    ) -> list[FunctionRecord]:
        """Give the instance its allocation of this host's devices, and burn those that are one-time-use.

        A repeated claim has the same result.

        :param allocation: all allocations of the instance in Placement.
        :param groups: the providers of each group of its request.
        :param at_least: number of functions that its flavor requests by alias. A provider created outside Autoclave may
            satisfy such a request without having a function.
        :returns: the instance's functions, ordered by address.
        :raises ClaimRefused: nothing was assigned. Placement has not allocated what the groups name, has allocated from
            a provider unknown to Autoclave, or has allocated more functions than there are; or a device is burned and
            not released.
        :raises DatabaseUnavailable: the outcome is unknown.
        :raises PlacementError: functions may be assigned, but not reserved; the guest must not run.
        """

        def claim(tx: Connection) -> list[FunctionRecord]:
            claimed = self._claim(tx, instance_uuid, allocation, groups)
            if len(claimed) < at_least:
                # Inside the transaction, so that a refused claim burns nothing.
                raise ClaimRefused(
                    f"its flavor asks for {at_least} functions by {ALIAS_KEY}, and {self._host} has {len(claimed)} of "
                    f"what Placement has allocated: {', '.join(sorted(allocation.allocations))}"
                )
            return claimed

        self._settle_confirmed(allocation)
        claimed = self._ports.db.transact(claim)
        self.settle(instance_uuid)
        return claimed

    def settle(self, instance_uuid: str, *, but: Collection[str] = ()) -> frozenset[str]:
        """Ensure that devices of the instance that must not be offered are reserved.

        Call this before its guest runs, and before they are freed.

        :param but: devices that are reconciled already.
        :returns: its other devices that had to be reserved.
        :raises PlacementError: a device may not be reserved.
        """
        with self._ports.db.read() as tx:
            held = pci.providers_of_instance(tx, instance_uuid)
        reserved = {each.device.uuid for each in held if must_be_reserved(each.device.offer)}.difference(but)
        for device_uuid in sorted(reserved):
            settle(self._ports.db, self._ports.placement, device_uuid)
        return frozenset(reserved)

    def _settle_confirmed(self, allocation: ConsumerAllocations) -> None:
        """Reconcile allocated devices that are spent and confirmed.

        If an operator has lowered ``reserved`` since the last period, this releases the device. If another writer has
        changed the inventory, such as its ``total``, the device stays spent, and the claim is refused.
        """
        with self._ports.db.read() as tx:
            rows = [row for row in pci.providers(tx, self._host) if row.uuid in allocation.allocations]
        for row in rows:
            if row.device.device_state is DeviceState.SPENT and row.device.burn_confirmed:
                try:
                    settle(self._ports.db, self._ports.placement, row.device.uuid)
                except TraitsMissing as error:
                    LOG.debug("A release of %s is pending until its traits are complete: %s", row.address, error)

    def functions_of(self, instance_uuid: str) -> list[FunctionRecord]:
        """Return the functions of the instance."""
        with self._ports.db.read() as tx:
            return pci.functions_of_instances(tx, [instance_uuid])

    def providers_of(self, instance_uuid: str) -> list[ProviderRecord]:
        """Return the providers of the functions that the instance has, and of those that it has burned."""
        with self._ports.db.read() as tx:
            return pci.providers_of_instance(tx, instance_uuid)

    def free(self, instance_uuid: str) -> list[DeviceRecord]:
        """Take all functions back, and return their devices. Call :meth:`settle` before this."""
        cause = Cause(Actor.AGENT, self._host)
        return self._ports.db.transact(lambda tx: claims.free(tx, instance_uuid, cause))

    def withhold(self, devices: Collection[DeviceRecord]) -> None:
        """Reserve the devices that an instance has left and that must not be offered.

        Call this after :meth:`free`, while the instance still has its allocation.

        :raises PlacementError: a device may not be reserved.
        """
        for device in devices:
            if must_be_reserved(device.offer):
                settle(self._ports.db, self._ports.placement, device.uuid)

    def _claim(
        self,
        tx: Connection,
        instance_uuid: str,
        allocation: ConsumerAllocations,
        groups: Mapping[str, Sequence[str]],
    ) -> list[FunctionRecord]:
        if not allocation.allocations:
            raise ClaimRefused("Placement has allocated nothing to it: only what a scheduler has claimed is given")
        known = {row.uuid: row for row in pci.providers(tx, self._host)}
        named = {rp_uuid for providers in groups.values() for rp_uuid in providers if rp_uuid in known}
        for rp_uuid in named - allocation.allocations.keys():
            raise ClaimRefused(
                f"Placement has not allocated {known[rp_uuid].address} of {self._host} to it: it is not given to it"
            )
        self._require_no_stranger(tx, known, allocation)
        has = pci.functions_of_instances(tx, [instance_uuid])
        had = Counter(each.provider_id for each in has)
        for row in known.values():  # ordered by id, so that concurrent claims cannot deadlock
            amount = allocation.allocations.get(row.uuid, {}).get(row.resource_class, 0)
            if amount > had[row.id]:
                self._claim_of(tx, row, amount - had[row.id], instance_uuid)
            elif row.uuid in named and not amount:
                raise ClaimRefused(f"Placement has not allocated any {row.resource_class} of {row.address} to it")
        return [each for each in pci.functions_of_instances(tx, [instance_uuid]) if each.hostname == self._host]

    def _require_no_stranger(
        self, tx: Connection, known: Mapping[str, ProviderRecord], allocation: ConsumerAllocations
    ) -> None:
        """Refuse an allocation from a provider unknown to Autoclave, because it has no function for the guest.

        Providers of drives, and classes of the operator's provider configuration, are permitted although they have
        none.
        """
        classes = {row.resource_class for row in known.values()}
        for rp_uuid, amounts in allocation.allocations.items():
            if rp_uuid in known or not (asked := classes & amounts.keys()):
                continue
            if asked <= pci.added_classes(tx, rp_uuid) or devices.by_provider(tx, rp_uuid) is not None:
                continue
            if pci.get(tx, rp_uuid) is not None:
                continue  # a provider of another host
            raise ClaimRefused(
                f"Placement has allocated {', '.join(sorted(asked))} of provider {rp_uuid} to it, which stands for no "
                f"function of {self._host}: delete that provider in Placement, and the instance"
            )

    def _claim_of(self, tx: Connection, seen: ProviderRecord, amount: int, instance_uuid: str) -> None:
        row = pci.get(tx, seen.uuid, lock=True)
        if row is None or row.resource_class != seen.resource_class:
            raise ClaimRefused(f"{seen.address} of {self._host} is no {seen.resource_class} for instances any more")
        own = pci.functions_of(tx, row)
        free = [each for each in own if each.instance_uuid is None and not each.missing]
        if len(free) < amount:
            raise ClaimRefused(
                f"{row.address} of {self._host} has {len(free)} functions left, and {amount} are asked of it; they "
                "are with other instances, or gone from the host"
            )
        if row.in_doubt:
            raise ClaimRefused(
                f"{row.address} of {self._host} is given to no further instance: "
                f"{row.device.unreadable_reason or row.device.waiting_for or 'its configuration has changed'}"
            )
        if row.device.device_state is DeviceState.SPENT:
            raise ClaimRefused(
                f"{row.address} of {self._host} is burned, and was not released: Placement must not have allocated it. "
                "Its reserved amount was lowered before Autoclave had seen it idle, or its total was changed. Release "
                f"it with `autoclave device release {self._host}/{row.address}`, or by reserved=0 in Placement"
            )
        if must_be_reserved(row.device.offer):
            why = ", ".join(row.device.offer.withheld) or row.device.device_state or "in no known state"
            raise ClaimRefused(f"{row.address} of {self._host} must not be claimed: it is {why}")
        cause = Cause(Actor.AGENT, self._host)
        try:
            claims.claim(tx, row.device, own, free[:amount], instance_uuid, cause, self._ports.clock())
        except StateConflict as error:
            raise ClaimRefused(str(error)) from None
        if row.one_time_use:
            LOG.info("%s of %s is burned for instance %s.", row.address, self._host, instance_uuid)
