"""Nova over HTTP: ``POST /os-server-external-events``."""

from collections.abc import Mapping, Sequence
from typing import Any

from keystoneauth1 import exceptions as ksa

from autoclave.conf.nova import GROUP
from autoclave.exceptions import NovaUnavailable
from autoclave.nova.port import Outcome, Reception
from autoclave.service_adapter import reason

PATH = "/os-server-external-events"
EVENT = "accelerator-request-bound"
MICROVERSION = "2.82"
"""The first one that knows the event."""

_RECEPTIONS = {
    200: Reception.TAKEN,
    400: Reception.NOT_UNDERSTOOD,
    404: Reception.UNKNOWN_INSTANCE,
    422: Reception.NO_HOST_YET,
}


class NovaClient:
    """Implements :class:`autoclave.nova.port.Nova`.

    :param adapter: a keystoneauth1 adapter with ``raise_exc=False``.
    """

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def tell(self, instance_uuid: str, outcomes: Sequence[Outcome]) -> Mapping[str, Reception]:
        events = [
            {
                "name": EVENT,
                "server_uuid": instance_uuid,
                "tag": outcome.arq_uuid,
                "status": "completed" if outcome.bound else "failed",
            }
            for outcome in outcomes
        ]
        try:
            response = self._adapter.post(PATH, json={"events": events})
        except ksa.ClientException as error:  # of Nova's or of Keystone's connection, or no token
            raise NovaUnavailable(
                f"POST {PATH} was not sent, or not answered: {reason(GROUP, self._adapter, error)}"
            ) from error
        if response.status_code == 400:
            return dict.fromkeys((outcome.arq_uuid for outcome in outcomes), Reception.NOT_UNDERSTOOD)
        if response.status_code not in (200, 207):
            raise NovaUnavailable(
                f"POST {PATH} was answered {response.status_code}: {response.text[:200]}{hint(response.status_code)}"
            )
        received = _receptions(response)
        if not received.keys() >= {outcome.arq_uuid for outcome in outcomes}:
            raise _not_nova(response, "not every event is in the answer")
        return received


def hint(status: int) -> str:
    """What an operator may look at where Nova answers *status*; empty: nothing in particular."""
    if status in (401, 403):
        return ". See [nova] auth_type and what goes with it, and the roles of its user"
    if status == 404:
        return ". Is the compute endpoint, or [nova] endpoint_override, Nova's?"
    if status == 406:
        return f". Nova must be one that has microversion {MICROVERSION}"
    return ""


def _receptions(response: Any) -> dict[str, Reception]:
    try:
        return {event["tag"]: _RECEPTIONS[event["code"]] for event in response.json()["events"]}
    except (ValueError, LookupError, TypeError) as error:
        raise _not_nova(response, f"{type(error).__name__}: {error}") from error


def _not_nova(response: Any, why: str) -> NovaUnavailable:
    return NovaUnavailable(
        f"POST {PATH} was answered {response.status_code}, but not as Nova answers ({why}): {response.text[:200]!r}"
    )
