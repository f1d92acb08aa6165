"""A port for a server that is told its port before it listens."""

import contextlib
import secrets
import socket

_FIRST, _COUNT = 10_000, 20_000
"""All of them below those that the kernel hands out itself (32768 and up): it would give them to others meanwhile."""
_given: set[int] = set()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on, and that nobody is given before somebody does."""
    while True:
        port = _FIRST + secrets.randbelow(_COUNT)
        if port not in _given:
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
                _given.add(port)
                return port
