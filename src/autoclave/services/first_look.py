"""What a service looks at when it starts, so that its log tells what is wrong before somebody needs it.

Nothing of it keeps the service from starting: it can do its work when the other side is mended.
"""

import threading
from datetime import timedelta

from oslo_log import log as logging

from autoclave.db import engine
from autoclave.db.engine import Database
from autoclave.exceptions import PlacementError
from autoclave.placement.client import PlacementClient

LOG = logging.getLogger(__name__)

TOLERATED = timedelta(seconds=10)
"""By so much may the clocks of a cloud differ before it is told."""
_KNOWN_TO_ALL = "VCPU"


def look_at_clock(database: Database) -> None:
    """Tell if the clock of this machine is not that of the database's server.

    :raises DatabaseUnavailable: the database does not answer.
    """
    ahead = engine.ahead_by(database)
    if abs(ahead) > TOLERATED:
        LOG.warning(
            "The clock of this machine is %d s %s that of the database's server. By clocks agents count as dead, and "
            "work as given up: set both clocks, with NTP",
            round(abs(ahead).total_seconds()),
            "ahead of" if ahead > timedelta() else "behind",
        )


def look_at_placement(placement: PlacementClient) -> None:
    """Tell, from a thread of its own, if Placement cannot be used: it may take long not to answer."""

    def look() -> None:
        try:
            placement.unknown_resource_classes([_KNOWN_TO_ALL])
        except PlacementError as error:
            LOG.error("Placement cannot be used, and nothing can be bound until it can: %s", error)

    threading.Thread(target=look, name="first look at Placement", daemon=True).start()
