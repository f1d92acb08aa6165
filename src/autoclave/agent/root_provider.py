"""The host's root provider, below which its devices hang."""

import uuid

from autoclave.exceptions import PlacementConflict, PlacementNotFound
from autoclave.placement.client import PlacementClient
from autoclave.placement.provider_tree import create_provider
from autoclave.placement.records import Provider


class RootProvider:
    """Finds the root provider by the host's name, and remembers it; makes it if that is our job.

    :param create: ``[placement] create_root_provider``; off where nova-compute makes it.
    """

    def __init__(self, placement: PlacementClient, host: str, *, create: bool) -> None:
        self._placement = placement
        self._host = host
        self._create = create
        self._uuid: str | None = None
        self._seen: tuple[str, list[Provider]] | None = None

    def tree(self, *, keep: bool = False) -> tuple[str, list[Provider]]:
        """The root's uuid, and all providers of its tree, itself included. One request when it is known.

        A known root whose tree is empty has been deleted: somebody may have made it anew, with another uuid.

        :param keep: for :meth:`tree_once_more`.
        :raises PlacementNotFound: there is none, and it is not ours to make; or it was deleted at the same moment.
        :raises PlacementError: Placement could not be asked.
        """
        if self._uuid is None or not (providers := self._placement.providers_in_tree(self._uuid)):
            self._uuid = self._find_or_make()
            providers = self._placement.providers_in_tree(self._uuid)
            if not providers:
                raise PlacementNotFound(f"provider {self._uuid} of {self._host} was deleted a moment ago")
        if keep:
            self._seen = self._uuid, providers
        return self._uuid, providers

    def tree_once_more(self) -> tuple[str, list[Provider]]:
        """What another part of this agent has just been told, which kept it; asked for if there is none. Told once.

        Generations in it may be old by now. Whoever compares them notices in the next period.

        :raises PlacementError: as :meth:`tree`.
        """
        seen, self._seen = self._seen, None
        return seen or self.tree()

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
            made = str(uuid.uuid4())
            create_provider(self._placement, made, self._host)
            return made
        except PlacementConflict:
            # made by somebody else between our two requests
            found = self._placement.find_provider(self._host)
            if found is None:
                raise
            return found.uuid
