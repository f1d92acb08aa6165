"""Limit the requests that wait for Placement or a conductor, so that others are answered in the meantime."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import falcon

from autoclave.api.errors import answer

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

RETRY_AFTER = 5
"""Set the Retry-After of a refused request, in seconds."""

_REFUSAL = "Too many requests wait for Placement or a conductor; nothing was done. Retry later."


class WaitingRoom:
    """Count the requests that wait.

    :param places: how many may wait at a time (``[api] max_waiting_requests``).
    """

    def __init__(self, places: int) -> None:
        self._places = threading.BoundedSemaphore(places)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Take a place for as long as the context lasts.

        :raises falcon.HTTPServiceUnavailable: there is none.
        """
        if not self._places.acquire(blocking=False):
            raise falcon.HTTPServiceUnavailable(description=_REFUSAL, retry_after=RETRY_AFTER)
        try:
            yield
        finally:
            self._places.release()


def bounded(app: "WSGIApplication", room: WaitingRoom) -> "WSGIApplication":
    """Return *app*, a slow application, with a place for each request until its body is complete."""

    def admit(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        try:
            with room.place():
                return list(app(environ, start_response))
        except falcon.HTTPServiceUnavailable:
            return answer(environ, start_response, 503, _REFUSAL, ("Retry-After", str(RETRY_AFTER)))

    return admit
