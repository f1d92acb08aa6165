#!/usr/bin/env python
"""What it takes to say what Placement is told of a host's PCI functions.

    benchmarks/translate.py [COUNT …]

Translates so many functions by [pci] device_spec, in three layouts: cards that one entry means, virtual functions
that one entry means, cards with an entry each. Prints milliseconds of processor time, the best of several rounds, and
their ratio to those of the first count: it should be that of the counts. The project promises 25 ms for 1,024.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence

from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.pci_inventory import DevType, PCIFunction, parse_pci_device_spec, translate

ROUNDS = 15
AIM = 25.0
"""Milliseconds for 1,024 functions."""

Layout = tuple[str, list[PCIFunction], list[dict[str, object]]]


def addresses(count: int) -> list[PCIAddress]:
    """So many slots, eight functions on each, as on a bus."""
    return [PCIAddress(n >> 16, n >> 8 & 0xFF, n >> 3 & 0x1F, n & 7) for n in range(count)]


def layouts(count: int) -> Iterator[Layout]:
    """What is translated, and by which entries."""
    cards = [PCIFunction(address, "10de", "25b6", DevType.PCI) for address in addresses(count)]
    told = {"one_time_use": True, "traits": "blue, big", "resource_class": "gpu"}
    yield "cards, one entry", cards, [{"vendor_id": "10de", **told}]
    ports = [PCIAddress(1, port, 0, 0) for port in range(64)]
    virtual = [
        PCIFunction(address, "8086", "154c", DevType.VF, ports[n % len(ports)])
        for n, address in enumerate(addresses(count))
    ]
    yield "virtual functions of 64 cards, one entry", virtual, [{"vendor_id": "8086", "product_id": "154c"}]
    yield "cards, an entry each", cards, [{"address": str(card.address), **told} for card in cards]


def milliseconds(functions: Sequence[PCIFunction], entries: Sequence[object]) -> float:
    """The best of several translations."""
    specs = parse_pci_device_spec([json.dumps(entry) for entry in entries])
    best = float("inf")
    for _ in range(ROUNDS):
        begun = time.process_time()
        translate(functions, specs)
        best = min(best, time.process_time() - begun)
    return best * 1000


def main(counts: Sequence[int]) -> None:
    first: dict[str, float] = {}
    for count in counts:
        for name, functions, entries in layouts(count):
            took = milliseconds(functions, entries)
            ratio = took / first.setdefault(name, took)
            aim = f"  {took / AIM:.2f} of the aim" if count == 1024 else ""
            print(f"{count:6,}  {name:42}{took:8.2f} ms{ratio:8.2f} x{aim}")


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or [1024, 2048, 4096])
