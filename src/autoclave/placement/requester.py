"""One request to Placement, and what its answer means."""

from collections.abc import Callable
from typing import Any, TypeVar

from keystoneauth1 import exceptions as ksa

from autoclave.conf.placement import GROUP
from autoclave.exceptions import PlacementConflict, PlacementNotFound, PlacementRefused, PlacementUnavailable
from autoclave.placement import document
from autoclave.service_adapter import reason

_T = TypeVar("_T")

_FROM_A_PROXY = frozenset({502, 503, 504})
"""Statuses that say nothing about whether Placement has seen the request."""

_ONCE = {"connect_retries": 0, "status_code_retries": 0}
"""A write is never repeated, whatever ``[placement]`` says: the first one may have been applied."""

_URL_OPTION = "[placement] endpoint_override, or else the placement endpoint in the catalog,"

_NO_SUCH_PATH = "The resource could not be found."
"""All that Placement says of a path that it does not have; of something that it does not know it says which."""


class Requester:
    """Sends one request, once, and returns its answer or raises what it means.

    :param adapter: a keystoneauth1 adapter with ``raise_exc=False``. Only GET obeys its retries.
    """

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def read(self, method: str, path: str, parse: Callable[[Any], _T], body: Any = None) -> _T:
        """Send the request and return what *parse* makes of the JSON of its answer.

        :raises PlacementUnavailable: no answer; the request may or may not have been applied.
        :raises PlacementConflict: 409.
        :raises PlacementNotFound: Placement itself says 404.
        :raises PlacementRefused: any other answer, also one with status 200 that is not Placement's.
        """
        response = self._send(method, path, body)
        try:
            return parse(response.json())
        except ValueError as exc:
            raise _not_placement(method, path, response, str(exc)) from exc

    def write(self, method: str, path: str, body: Any = None) -> None:
        """Send a request that Placement answers without a body; raises as :meth:`read` does."""
        response = self._send(method, path, body)
        if response.content:
            raise _not_placement(method, path, response, "a body where there is none")

    def _send(self, method: str, path: str, body: Any) -> Any:
        try:
            response = self._adapter.request(path, method, json=body, **({} if method == "GET" else _ONCE))
        except ksa.ConnectionError as exc:
            if path not in str(exc):  # it was on the way to Keystone, for a token
                raise PlacementUnavailable(
                    f"no token for {method} {path}: {exc}; see that Keystone answers at [placement] auth_url"
                ) from exc
            raise PlacementUnavailable(
                f"Placement did not answer {method} {path}: {exc}; see that it runs, and that {_URL_OPTION} is its URL"
            ) from exc
        except ksa.HttpError as exc:
            # Keystone's answer, when a token was asked for; Placement's come back as responses.
            status = exc.http_status
            kind = f"no token for {method} {path}: Keystone answered {status}: {exc}"
            if status >= 500:
                raise PlacementUnavailable(kind) from exc
            raise PlacementRefused(f"{kind}; see [placement] auth_type and its credentials", status) from exc
        except ksa.EndpointNotFound as exc:
            raise PlacementUnavailable(f"{method} {path} was not sent: {reason(GROUP, self._adapter, exc)}") from exc
        except ksa.ClientException as exc:
            raise PlacementUnavailable(f"no token for {method} {path}: {exc}") from exc
        if not 200 <= response.status_code < 300:
            _raise(method, path, response)
        return response


def _raise(method: str, path: str, response: Any) -> None:
    status: int = response.status_code
    said = _said(response)
    detail = said[0] if said else response.text[:120] or response.reason
    message = f"{method} {path} was answered {status}: {detail.removesuffix('.')}"
    if status in _FROM_A_PROXY:
        raise PlacementUnavailable(message)
    if status == 409:
        raise PlacementConflict(message, said[1] if said else "")
    if status == 404 and said and detail != _NO_SUCH_PATH:
        raise PlacementNotFound(message)
    if status == 404:
        # Any web server, and Placement too, says 404 to a wrong URL; only Placement says what does not exist.
        raise PlacementRefused(f"{message}. Is {_URL_OPTION} the URL of Placement?", status)
    if status in (401, 403):
        raise PlacementRefused(f"{message}. See [placement] auth_type and what goes with it", status)
    raise PlacementRefused(message, status)


def _not_placement(method: str, path: str, response: Any, why: str) -> PlacementRefused:
    return PlacementRefused(
        f"{method} {path} was answered {response.status_code}, but not as Placement answers ({why}): "
        f"{response.text[:120]!r}. Is {_URL_OPTION} the URL of Placement?",
        response.status_code,
    )


def _said(response: Any) -> tuple[str, str] | None:
    try:
        return document.error(response.json())
    except ValueError:
        return None
