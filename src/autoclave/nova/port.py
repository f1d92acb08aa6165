"""What a conductor needs of the compute service: to tell how a bind ended, and to ask which servers are still there."""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol


class Outcome(NamedTuple):
    """How the bind of one accelerator request (ARQ) ended.

    :param bound: whether the instance has its device; else the bind failed.
    """

    arq_uuid: str
    bound: bool


class Reception(Enum):
    """What became of one event. All but ``NO_HOST_YET`` are final."""

    TAKEN = "taken"
    NO_HOST_YET = "the instance has no host yet"
    UNKNOWN_INSTANCE = "the instance is not known"
    NOT_UNDERSTOOD = "the event is not understood"


class Nova(Protocol):
    """The compute service. It may be told the same twice."""

    def tell(self, instance_uuid: str, outcomes: Sequence[Outcome]) -> Mapping[str, Reception]:
        """Tell how the binds for one instance ended.

        :returns: what became of each event, by the uuid of its ARQ.
        :raises NovaUnavailable: no answer that can be used; the events may have been taken all the same.
        """


class Presence(Enum):
    """What Nova says of a server."""

    THERE = "there"
    SOFT_DELETED = "soft-deleted"
    """It can be restored: its disks, its requests and what it has are kept."""
    DELETED = "deleted"
    ABSENT = "not known"


class Server(NamedTuple):
    """The answer about one server.

    :param project_id: whose it is; None: Nova does not know the server.
    """

    presence: Presence
    project_id: str | None


class Servers(Protocol):
    """The servers of all projects. Every method raises ``NovaUnavailable`` where nothing is known."""

    def own_project(self) -> str | None:
        """Return the project of the credentials; None: that cannot be told."""

    def not_listed(self, wanted: Collection[str]) -> frozenset[str]:
        """Return those of *wanted* that are in no list of the servers of all projects.

        For a first guess: the servers of a cell that is down are in no list.

        :raises NovaUnavailable: also where the credentials may not list the servers of all projects.
        """

    def look_up(self, uuid: str) -> Server:
        """Return what Nova says of one server.

        :raises NovaUnavailable: also where the credentials may not look for deleted servers of all projects.
        """
