"""Claims of instances on the PCI functions of one host (one-time-use specification).

A claim is one transaction: functions are given to the instance, and those that serve one instance only are burned with
that. Then Placement is made to agree, before the guest can run. Whoever dies in between leaves an instance that has its
functions, and a burned device that the next period reserves.
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
    """Gives the functions of a host to its instances, and takes them back.

    Claims may come at the same time: each provider's row is locked while it is claimed from.
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
        """Give the instance what Placement has allocated to it of this host's functions, and burn what is to be burned.

        Claimed a second time, it is the same claim.

        :param allocation: all that Placement says the instance holds.
        :param groups: the providers that each group of its request got.
        :param at_least: how many functions its flavor asks for by name; a provider that somebody made by hand may
            serve such a request, with no function behind it.
        :returns: its functions, in order of their address.
        :raises ClaimRefused: nothing was given: Placement has not allocated what the groups name, or has allocated it
            of a provider that is none of ours, there are not as many functions as it says, or one is burned and was
            not released.
        :raises DatabaseUnavailable: it is not known whether they were given.
        :raises PlacementError: they may be given, but ``reserved`` may not stand: the guest must not run.
        """

        def claim(tx: Connection) -> list[FunctionRecord]:
            claimed = self._claim(tx, instance_uuid, allocation, groups)
            if len(claimed) < at_least:
                # Inside the transaction: what it does not get must not be burned for it either.
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
        """See to it that what the instance has burned is reserved. Before its guest runs, and before it lets go.

        :param but: providers that are settled already.
        :returns: the other providers of what it has burned.
        :raises PlacementError: that is not sure.
        """
        with self._ports.db.read() as tx:
            burned = {each.uuid for each in pci.providers_of_instance(tx, instance_uuid) if each.burned}
        for rp_uuid in sorted(burned.difference(but)):
            settle_provider(self._ports.db, self._ports.placement, rp_uuid)
        return frozenset(burned.difference(but))

    def _settle_confirmed(self, allocation: ConsumerAllocations) -> None:
        """Settle what was allocated although its burn is confirmed.

        Either an operator has lowered ``reserved`` and no period has seen it yet: that ends the burn now. Or another
        has written the record, such as a larger ``total``: the device stays burned, and its claim is refused.
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
        """What the instance has."""
        with self._ports.db.read() as tx:
            return pci.functions_of_instances(tx, [instance_uuid])

    def providers_of(self, instance_uuid: str) -> list[ProviderRecord]:
        """The providers of what the instance has, and of what it has burned."""
        with self._ports.db.read() as tx:
            return pci.providers_of_instance(tx, instance_uuid)

    def free(self, instance_uuid: str) -> None:
        """Take all functions back. What is burned stays burned; settle before this."""
        self._ports.db.transact(lambda tx: pci.free(tx, instance_uuid))

    def withhold(self, instance_uuid: str) -> None:
        """Reserve what the instance has left, and what must not be given to a further one as it is on record.

        After :meth:`free`, and while the instance's allocation, which names the providers, still stands. The next
        period rewrites them by the configuration, or reads them again.

        :raises PlacementError: that is not sure.
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
        for row in known.values():  # in the order of their ids: two claims cannot wait for each other
            amount = allocation.allocations.get(row.uuid, {}).get(row.resource_class, 0)
            if amount > had[row.id]:
                self._claim_of(tx, row, amount - had[row.id], instance_uuid)
            elif row.uuid in named and not amount:
                raise ClaimRefused(f"Placement has not allocated any {row.resource_class} of {row.address} to it")
        return [each for each in pci.functions_of_instances(tx, [instance_uuid]) if each.hostname == self._host]

    def _require_no_stranger(
        self, tx: Connection, known: Mapping[str, ProviderRecord], allocation: ConsumerAllocations
    ) -> None:
        """Refuse what somebody else's provider was allocated for: the guest would run without the function.

        Drives may be of the same class, and so may what the operator's provider config adds; neither has functions.
        """
        classes = {row.resource_class for row in known.values()}
        for rp_uuid, amounts in allocation.allocations.items():
            if rp_uuid in known or not (asked := classes & amounts.keys()):
                continue
            if asked <= pci.added_classes(tx, rp_uuid) or devices.by_provider(tx, rp_uuid) is not None:
                continue
            if pci.get(tx, rp_uuid) is not None:
                continue  # another host's
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
