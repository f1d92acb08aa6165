"""Report providers whose ``reserved`` is too low, and name another writer only on evidence."""

from oslo_log import log as logging

LOG = logging.getLogger(__name__)

Version = tuple[object, ...]
"""What moves with every change of a row that decides ``reserved``."""


class LoweredReserved:
    """Remembers for which version of its row each provider was seen with ``reserved`` of all.

    A row is committed first and Placement is told afterwards, so a lower ``reserved`` proves nothing by itself: an
    operator's word or a bind may be on its way. It proves another writer if it stood for the same version before.
    """

    def __init__(self) -> None:
        self._full: dict[str, Version] = {}
        self._looked_at: set[str] = set()

    def saw_full(self, rp_uuid: str, version: Version) -> None:
        """Note that Placement has ``reserved`` of all, as *version* of the row demands."""
        self._looked_at.add(rp_uuid)
        self._full[rp_uuid] = version

    def saw(self, rp_uuid: str) -> None:
        """Note that the provider was looked at, and nothing had to be reserved."""
        self._looked_at.add(rp_uuid)

    def report(self, rp_uuid: str, version: Version, now: Version | None, what: str) -> None:
        """Log that Placement has less, in words that claim no more than is known.

        :param version: the row's when Placement was asked.
        :param now: the row's, read again since; None: it is gone.
        :param what: the provider, what it has, and why that is too little.
        """
        first = rp_uuid not in self._looked_at
        self._looked_at.add(rp_uuid)
        if now != version:
            LOG.debug("%s This was changing while it was looked at.", what)
        elif self._full.get(rp_uuid) == version:
            LOG.warning("%s Something other than Autoclave lowered it: it was reserved before.", what)
        elif first:
            LOG.warning("%s Its last change had not reached Placement, or something other than Autoclave wrote.", what)
        else:
            LOG.info("%s Its last change had not reached Placement yet.", what)
