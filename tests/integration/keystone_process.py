"""The real Keystone in a process of its own: :func:`prepare`, then ``keystone_process.py DIRECTORY PORT``."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from cheroot import wsgi
from cryptography.fernet import Fernet

_CONFIGURATION = """\
[database]
connection = sqlite:///{directory}/keystone.db
[identity]
password_hash_rounds = 4
[fernet_tokens]
key_repository = {directory}/fernet
[fernet_receipts]
key_repository = {directory}/fernet
[credential]
key_repository = {directory}/credential
"""


def prepare(directory: Path, url: str, password: str) -> None:
    """Make the database, the keys and the user ``admin``."""
    configuration = directory / "keystone.conf"
    configuration.write_text(_CONFIGURATION.format(directory=directory))
    for name in ("fernet", "credential"):
        repository = directory / name
        repository.mkdir(mode=0o700)
        for number in range(2):
            key = repository / str(number)
            key.write_bytes(Fernet.generate_key())
            key.chmod(0o600)
    manage = [str(Path(sys.executable).with_name("keystone-manage")), "--config-file", str(configuration)]
    bootstrap = {"password": password, "public-url": url, "internal-url": url, "region-id": "one"}
    options = [text for name, value in bootstrap.items() for text in (f"--bootstrap-{name}", value)]
    for command in (["db_sync"], ["bootstrap", *options]):
        subprocess.run([*manage, *command], check=True, timeout=120, capture_output=True)


def main(directory: Path, port: int) -> None:
    """Serve until SIGTERM."""
    os.environ["OS_KEYSTONE_CONFIG_FILES"] = str(directory / "keystone.conf")
    sys.argv = sys.argv[:1]  # which Keystone reads, too
    from keystone.server.wsgi import initialize_public_application

    application = initialize_public_application()
    server = wsgi.Server(("127.0.0.1", port), application, numthreads=4)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        server.start()
    finally:
        server.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
