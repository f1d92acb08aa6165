"""Instances of one host that claim its cards at once, on each engine: a card goes to one, and nobody is half served."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

from pciworld import CLASS, HOST, PCIWorld

from autoclave.agent.compute.claims import ResourceTracker
from autoclave.db import pci
from autoclave.exceptions import ClaimRefused
from autoclave.lifecycle.ports import Ports, RPCCleaners
from autoclave.lifecycle.reserve import Settled
from autoclave.placement.records import ConsumerAllocations
from autoclave.rpc.inprocess import InProcessTransport
from burnedrows import OPERATOR, ask_release

CARDS = ("0000:81:00.0", "0000:82:00.0", "0000:83:00.0")
ROUNDS = 4


def test_of_those_who_claim_two_of_three_cards_at_once_one_gets_both_and_the_others_nothing(
    pci_world: PCIWorld,
) -> None:
    cards = [pci_world.add(address) for address in CARDS]
    for card in cards:
        assert pci_world.settle(card) is Settled.LOWERED
    tracker = ResourceTracker(Ports(pci_world.db, pci_world.placement, RPCCleaners(InProcessTransport())), HOST)
    start = threading.Barrier(6, timeout=60)

    def claim(number: int) -> tuple[str, bool]:
        # every two of the three, and in each order
        wanted = [cards[number % 3], cards[(number + 1) % 3]][:: 1 if number < 3 else -1]
        instance = str(uuid.uuid4())
        allocation = ConsumerAllocations(instance, {card: {CLASS: 1} for card in wanted}, 1, "project", "user")
        start.wait()
        try:
            return instance, len(tracker.instance_claim(instance, allocation, {"": wanted}, at_least=2)) == 2
        except ClaimRefused:
            return instance, False

    def give_back(instance: str) -> None:
        start.wait()
        tracker.settle(instance)
        tracker.free(instance)
        tracker.settle(instance)

    with ThreadPoolExecutor(6) as pool:
        for _ in range(ROUNDS):
            served = dict(pool.map(claim, range(6)))
            [winner] = [instance for instance, got_both in served.items() if got_both]
            with pci_world.db.read() as tx:
                held = pci.functions_of_instances(tx, list(served))
                views = pci.list_all(tx, HOST)
            assert [each.instance_uuid for each in held] == [winner, winner]
            assert [(view.provider.device.burned_for, view.instance_uuid) for view in views] == [(winner, winner)] * 2
            assert sum(map(pci_world.offered, cards)) == 1
            list(pool.map(give_back, served))
            with pci_world.db.read() as tx:
                assert pci.functions_of_instances(tx, list(served)) == []
                assert pci.providers_of_instance(tx, winner) == [view.provider for view in pci.list_all(tx)]
            for view in views:
                ask_release(pci_world.db, pci_world.placement, view.provider.uuid, OPERATOR)
            assert sum(map(pci_world.offered, cards)) == 3
