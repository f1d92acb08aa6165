"""The host's root provider, below which its devices hang."""

import uuid

from autoclave.exceptions import PlacementConflict, PlacementNotFound
from autoclave.placement.client import PlacementClient


class RootProvider:
    """Finds the root provider by the host's name, once; makes it if that is our job.

    :param create: ``[placement] create_root_provider``; off where nova-compute makes it.
    """

    def __init__(self, placement: PlacementClient, host: str, *, create: bool) -> None:
        self._placement = placement
        self._host = host
        self._create = create
        self._uuid: str | None = None

    def uuid(self) -> str:
        """The provider's uuid.

        :raises PlacementNotFound: there is none, and it is not ours to make.
        :raises PlacementError: Placement could not be asked.
        """
        if self._uuid is None:
            self._uuid = self._find_or_make()
        return self._uuid

    def forget(self) -> None:
        """Ask again next time: somebody may have made the provider anew."""
        self._uuid = None

    def _find_or_make(self) -> str:
        found = self._placement.find_provider(self._host)
        if found is not None:
            return found.uuid
        if not self._create:
            raise PlacementNotFound(
                f"Placement has no provider named {self._host}. Start nova-compute on this host, or correct "
                "[agent] resource_provider_name, or set [placement] create_root_provider."
            )
        try:
            return self._placement.create_provider(str(uuid.uuid4()), self._host).uuid
        except PlacementConflict:
            # made by somebody else between our two requests
            found = self._placement.find_provider(self._host)
            if found is None:
                raise
            return found.uuid
