"""``clouds.yaml`` in the data directory of ``autoclave up``: how OpenStack's clients and our own commands reach it."""

import shlex
from pathlib import Path

import yaml

from autoclave.exceptions import InvalidConfiguration
from autoclave.simulator import files

CLOUD = "autoclave"
"""Its name in the file: what ``OS_CLOUD`` has to be."""

_BASE = """\
clouds:
  {cloud}:
    auth_type: admin_token
    auth: {{endpoint: "{url}/placement", token: "admin"}}
    placement_endpoint_override: {url}/placement
    accelerator_endpoint_override: {url}/accelerator/v2
    identity_endpoint_override: {url}/identity/v3
    accelerator_default_microversion: "2.5"
"""
_COMPUTE = """\
    compute_endpoint_override: {url}/compute/v2.1
    image_endpoint_override: {url}/image/v2
"""


class CloudsFile:
    """That of one data directory. It is written at each start, and says where the last one listened.

    :param data_dir: the directory of ``autoclave up``.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.path = data_dir / "clouds.yaml"

    def write(self, url: str, *, compute: bool) -> None:
        """Say that *url* is listened on.

        :param compute: whether the compute and the image APIs are served.
        """
        text = _BASE + (_COMPUTE if compute else "")
        files.write_text(self.path, text.format(cloud=CLOUD, url=url))

    @property
    def url(self) -> str:
        """Where it listens.

        :raises InvalidConfiguration: nothing says so.
        """
        return self._endpoint("accelerator").removesuffix("/accelerator/v2")

    @property
    def placement(self) -> str:
        """The URL of its Placement.

        :raises InvalidConfiguration: nothing says so.
        """
        return self._endpoint("placement")

    @property
    def exports(self) -> str:
        """What a shell is told, so that ``openstack`` and ``autoclave`` find it."""
        where = self._data_dir.absolute()
        return (
            f"export OS_CLIENT_CONFIG_FILE={shlex.quote(str(where / self.path.name))} OS_CLOUD={CLOUD}\n"
            f"export AUTOCLAVE_DATA_DIR={shlex.quote(str(where))}\n"
        )

    def _endpoint(self, service: str) -> str:
        try:
            text = self.path.read_text()
        except OSError as error:
            raise InvalidConfiguration(
                f"{self.path}, which says where the `autoclave up` of this directory listens, cannot be read "
                f"({error.strerror}): wait until that has started, or name another directory"
            ) from error
        try:
            return str(yaml.safe_load(text)["clouds"][CLOUD][f"{service}_endpoint_override"])
        except (yaml.YAMLError, LookupError, TypeError):
            raise InvalidConfiguration(
                f"{self.path} does not say where {service} is; restart `autoclave up`, which writes it anew"
            ) from None
