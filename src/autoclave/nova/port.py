"""What a conductor needs of the compute service: somebody who is told how a bind ended."""

from collections.abc import Mapping, Sequence
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
