"""CPU seconds to read provider configuration, beside what PyYAML's C loader takes for the same text.

Each input is read in a process of its own, so that none is measured with the garbage of another. See README.md.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count

import yaml

from autoclave.exceptions import ProviderConfigFaults
from autoclave.rules.provider_config import parse

MIB = 1 << 20
_HEAD = "meta:\n  schema_version: '1.0'\nproviders:\n"


def _sound(number: int) -> str:
    return f"""  - identification:
      uuid: {number:08x}-0000-4000-8000-000000000000
    inventories:
      additional:
        - CUSTOM_A{number}:
            total: 10
            reserved: 1
            min_unit: 1
            max_unit: 5
            step_size: 1
            allocation_ratio: 1.5
    traits:
      additional:
        - CUSTOM_T
        - CUSTOM_T{number}
"""


def _faulty(number: int) -> str:
    return f"  - {{identification: {{uuid: x{number}}}}}\n"


def _unknown(number: int) -> str:
    return f"  - {{identification: {{name: n{number}}}, traitz: {number}}}\n"


def _filled(head: str, piece: Callable[[int], str], size: int) -> str:
    def pieces() -> Iterator[str]:
        left = size - len(head)
        for number in count():
            text = piece(number)
            left -= len(text)
            if left < 0:
                return
            yield text

    return head + "".join(pieces())


def _merges(size: int) -> str:
    """Half of it is one mapping, the other half names that for merging, again and again."""
    base = _filled("x: &a\n", lambda number: f"  k{number}: 1\n", size // 2)
    return base + "y:\n  <<: [" + "*a," * (size // 6) + "]\n"


INPUTS: dict[str, Callable[[], str]] = {
    "1 MiB of sound entries": lambda: _filled(_HEAD, _sound, MIB),
    "1 MiB of faults": lambda: _filled(_HEAD, _faulty, MIB),
    "1 MiB of unknown fields": lambda: _filled(_HEAD, _unknown, MIB),
    "89 kB of merge keys": lambda: _merges(89_000),
    "500 kB of merge keys": lambda: _merges(500_000),
}


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _said(text: str) -> int:
    """Read *text*; return the characters of what is said of it."""
    try:
        return sum(map(len, parse({"file.yaml": text}).notes))
    except ProviderConfigFaults as faults:
        return len(str(faults))


def _one(name: str) -> None:
    text = INPUTS[name]()
    characters = 0

    def read() -> None:
        nonlocal characters
        characters = _said(text)

    ours = _seconds(read)
    try:
        plain = None if "merge" in name else _seconds(lambda: yaml.load(text, yaml.CSafeLoader))
    except yaml.YAMLError:
        plain = None
    ratio = "" if plain is None else f"{plain:6.2f} s {ours / plain:5.1f}"
    print(f"{name:<24} {len(text):>8} bytes {ours:6.2f} s {characters:>7} characters {ratio}")


def main() -> None:
    """Measure all inputs, each in a process of its own."""
    if len(sys.argv) > 1:
        _one(sys.argv[1])
        return
    for name in INPUTS:
        subprocess.run([sys.executable, __file__, name], check=True)


if __name__ == "__main__":
    main()
