"""The stories of a drive and of instances, told with the real ``openstack`` command on simulated hosts.

Every fact is checked and prints one line; the exit code is 0 only if all of them hold. Nothing but a
temporary directory is written, and nothing but the service that is started here is stopped.
"""

import tempfile
from pathlib import Path

import drives
import instances
from stage import service


def main() -> None:
    """Tell the stories."""
    with tempfile.TemporaryDirectory(prefix="autoclave-demo-") as directory:
        data_dir = Path(directory)
        with service(data_dir, instances.configuration(data_dir)) as demo:
            drives.tell(demo)
            instances.tell(demo)
    print("\nEvery fact held.")


if __name__ == "__main__":
    main()
