"""A Placement in a process of its own: ``placement_process.py FILE PORT``, with the token ``admin``."""

import signal
import sys
from pathlib import Path
from typing import Any

from cheroot import wsgi

import autoclave.objects  # noqa: F401 - chooses the threads before Placement imports what would choose eventlet
from autoclave.placement.embedded import EmbeddedPlacement, Front, Identity


def authenticate(environ: Any) -> Identity | None:
    """The one token is an administrator's."""
    if environ.get("HTTP_X_AUTH_TOKEN") != "admin":
        return None
    return Identity("admin", "admin", ("admin", "service", "member", "reader"))


def main(database: str, port: int) -> None:
    """Serve until SIGTERM."""
    placement = EmbeddedPlacement.start(Path(database))
    server = wsgi.Server(("127.0.0.1", port), Front(placement.app, authenticate), numthreads=8)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        server.start()
    finally:
        server.stop()
        placement.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
