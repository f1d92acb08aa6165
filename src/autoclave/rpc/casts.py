"""Where casts wait in the in-process transport: on a bounded pool."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import futurist
from futurist import rejection

from autoclave.exceptions import RPCUnavailable


@dataclass(frozen=True)
class Cast:
    """A message on its way.

    :param server: None: any server of the topic.
    :param context: ``RequestContext.to_dict()``.
    :param arguments: the keyword arguments, encoded.
    """

    topic: str
    server: str | None
    method: str
    version: str
    context: Mapping[str, Any]
    arguments: str


Deliver = Callable[[Cast], None]
"""Runs a cast at its server, or drops it where there is none; does not raise."""


class CastQueue(Protocol):
    """Takes casts and delivers them some time later, or never."""

    def put(self, cast: Cast, deliver: Deliver) -> None:
        """Take *cast*.

        :raises RPCUnavailable: there is no room for it.
        """

    def close(self) -> None:
        """Deliver nothing more."""


class PooledCasts:
    """Delivers each cast on a thread of a pool, in about the order they came.

    :param workers: how many casts run at the same time.
    :param capacity: how many more may wait; beyond that the sender is told.
    """

    def __init__(self, workers: int = 8, capacity: int = 1000) -> None:
        self._capacity = capacity
        self._pool = futurist.ThreadPoolExecutor(workers, check_and_reject=rejection.reject_when_reached(capacity))

    def put(self, cast: Cast, deliver: Deliver) -> None:
        try:
            self._pool.submit(deliver, cast)
        except futurist.RejectedSubmission as error:
            raise RPCUnavailable(
                f"{cast.method} was not sent to {cast.topic}: {self._capacity} messages of this process wait already"
            ) from error
        except RuntimeError as error:
            raise RPCUnavailable(f"{cast.method} was not sent to {cast.topic}: its transport is closed") from error

    def close(self) -> None:
        # Servers wait for what they have begun; joining idle threads here would only cost a second.
        self._pool.shutdown(wait=False)
