"""Claim PCI functions of one host for instances (one-time-use specification).

One transaction assigns the functions to the instance, and burns those that are one-time-use. Then Placement is
reconciled, before the guest can run. After a crash in between, the instance still has its functions, and the next
period reserves the burned devices.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.db import devices, pci
from autoclave.db.pci import FunctionRecord, ProviderRecord
from autoclave.exceptions import ClaimRefused, TraitsMissing
from autoclave.lifecycle.burn import burn, settle_provider
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.transitions import Cause
from autoclave.placement.records import ConsumerAllocations
from autoclave.rules.burn import BurnState, may_be_claimed
from autoclave.rules.device_lifecycle import Actor
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
        """Assign to the instance its allocation of this host's functions, and burn one-time-use devices.

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
        """Ensure that devices burned by the instance are reserved, before its guest runs and before they are freed.

        :param but: providers that are reconciled already.
        :returns: the other providers of its burned devices.
        :raises PlacementError: a device may not be reserved.
        """
        with self._ports.db.read() as tx:
            burned = {each.uuid for each in pci.providers_of_instance(tx, instance_uuid) if each.burned}
        for rp_uuid in sorted(burned.difference(but)):
            settle_provider(self._ports.db, self._ports.placement, rp_uuid)
        return frozenset(burned.difference(but))

    def _settle_confirmed(self, allocation: ConsumerAllocations) -> None:
        """Reconcile allocated providers whose burn is confirmed.

        If an operator has lowered ``reserved`` since the last period, this ends the burn. If another writer has changed
        the inventory, such as its ``total``, the device stays burned, and the claim is refused.
        """
        with self._ports.db.read() as tx:
            rows = [row for row in pci.providers(tx, self._host) if row.uuid in allocation.allocations]
        for row in rows:
            if row.burn_state is BurnState.CONFIRMED:
                try:
                    settle_provider(self._ports.db, self._ports.placement, row.uuid)
                except TraitsMissing as error:
                    LOG.debug("A release of %s is pending until its traits stand: %s", row.address, error)

    def functions_of(self, instance_uuid: str) -> list[FunctionRecord]:
        """Return the functions of the instance."""
        with self._ports.db.read() as tx:
            return pci.functions_of_instances(tx, [instance_uuid])

    def providers_of(self, instance_uuid: str) -> list[ProviderRecord]:
        """Return the providers of the functions that the instance has, and of those that it has burned."""
        with self._ports.db.read() as tx:
            return pci.providers_of_instance(tx, instance_uuid)

    def free(self, instance_uuid: str) -> None:
        """Take all functions back. Burned devices stay burned. Call :meth:`settle` before this."""
        self._ports.db.transact(lambda tx: pci.free(tx, instance_uuid))

    def withhold(self, instance_uuid: str) -> None:
        """Reserve the providers that the instance leaves and that must not be offered until their rows are up to date.

        Call this after :meth:`free`, while the instance still has its allocation, which names the providers. The next
        period updates the rows, or reads the functions again.

        :raises PlacementError: a provider may not be reserved.
        """
        with self._ports.db.read() as tx:
            doubted = [row for row in pci.providers(tx, self._host) if row.in_doubt]
        held = self._ports.placement.get_allocations(instance_uuid).allocations if doubted else {}
        for row in doubted:
            if row.uuid in held:
                settle_provider(self._ports.db, self._ports.placement, row.uuid)

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
                f"{row.unreadable_reason or row.waiting_for or 'its configuration has changed'}"
            )
        if not may_be_claimed(row.facts(claimed=sum(each.instance_uuid is not None for each in own))):
            raise ClaimRefused(
                f"{row.address} of {self._host} is burned, and was not released: Placement must not have allocated it. "
                "Its reserved amount was lowered before Autoclave had seen it idle, or its total was changed. Release "
                "it with `autoclave burned release`, or by reserved=0 in Placement"
            )
        if not pci.claim(tx, [each.id for each in free[:amount]], instance_uuid):
            raise ClaimRefused(f"{row.address} of {self._host} was given to another instance at the same moment")
        if not burn(tx, row, instance_uuid, self._ports.clock(), Cause(Actor.AGENT, self._host)):
            raise ClaimRefused(f"{row.address} of {self._host} was changed at the same moment")
        if row.one_time_use:
            LOG.info("%s of %s is burned for instance %s.", row.address, self._host, instance_uuid)
