"""The real Placement behind Keystone, in a process of its own: ``placement_behind_keystone.py DIRECTORY PORT``.

:func:`prepare` comes before. It has the one thread that SQLite can bear.
"""

import os
import signal
import sys
from pathlib import Path

from cheroot import wsgi

import autoclave.objects  # noqa: F401 - chooses the threads before Placement imports what would choose eventlet

_CONFIGURATION = """\
[api]
auth_strategy = keystone
[placement_database]
connection = sqlite:///{directory}/placement.db
sync_on_startup = true
[keystone_authtoken]
www_authenticate_uri = {identity}
auth_url = {identity}
auth_type = password
username = placement
password = {password}
project_name = service
user_domain_id = default
project_domain_id = default
"""


def prepare(directory: Path, identity: str, password: str) -> None:
    """Write its configuration.

    :param identity: URL of the Keystone that knows the user ``placement``.
    :param password: the user's.
    """
    text = _CONFIGURATION.format(directory=directory, identity=identity, password=password)
    (directory / "placement.conf").write_text(text)


def main(directory: Path, port: int) -> None:
    """Serve until SIGTERM."""
    os.environ["OS_PLACEMENT_CONFIG_DIR"] = str(directory)
    from placement.wsgi import init_application

    server = wsgi.Server(("127.0.0.1", port), init_application(), numthreads=1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        server.start()
    finally:
        server.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
