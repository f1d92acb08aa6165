"""The resource request of an instance, with what the database knows of device profiles."""

from collections.abc import Mapping
from typing import Any

from autoclave.db import profiles as profile_rows
from autoclave.db.profiles import ProfileRecord
from autoclave.exceptions import BadRequest
from autoclave.lifecycle.ports import Ports
from autoclave.rules.flavor_image import Flavor
from autoclave.rules.pci_alias import PCIAlias
from autoclave.rules.resource_request import PROFILE_KEY, ResourceRequest, build_request, device_profile_name


class Requests:
    """Makes requests of what instances keep of their flavors and images.

    :param aliases: those of ``[pci] alias`` by name.
    """

    def __init__(self, ports: Ports, aliases: Mapping[str, PCIAlias]) -> None:
        self._ports = ports
        self._aliases = aliases

    def of(self, flavor: Mapping[str, Any], image: Mapping[str, Any]) -> tuple[ResourceRequest, ProfileRecord | None]:
        """The request of the snapshots of a flavor and an image, and the device profile that went into it.

        :raises BadRequest: they exclude each other, or name what does not exist; names it.
        """
        profile = self._profile_of(flavor)
        groups = profile.groups if profile else []
        return build_request(Flavor.from_snapshot(flavor), image["properties"], self._aliases, groups), profile

    def _profile_of(self, flavor: Mapping[str, Any]) -> ProfileRecord | None:
        name = device_profile_name(flavor["extra_specs"])
        if name is None:
            return None
        with self._ports.db.read() as tx:
            profile = profile_rows.find(tx, name=name)
        if profile is None:
            raise BadRequest(f"Flavor extra spec {PROFILE_KEY!r}: there is no device profile {name!r}.")
        return profile
