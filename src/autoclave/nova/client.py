"""Report bind events to Nova (``POST /os-server-external-events``).

The ports also define the lookup of servers. One keystoneauth1 adapter for the ``[nova]`` options carries all requests.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

from keystoneauth1 import exceptions as ksa
from oslo_config import cfg

from autoclave.conf.clouds import NOVA
from autoclave.exceptions import NovaUnavailable
from autoclave.service_adapter import make_adapter, reason


class Outcome(NamedTuple):
    """Hold the result of the bind of one accelerator request (ARQ).

    :param bound: the instance has its device; otherwise the bind failed.
    """

    arq_uuid: str
    bound: bool


class Reception(Enum):
    """List the results of one event. All but ``NO_HOST_YET`` are final."""

    TAKEN = "taken"
    NO_HOST_YET = "the instance has no host yet"
    UNKNOWN_INSTANCE = "the instance is not known"
    NOT_UNDERSTOOD = "the event is not understood"


class Nova(Protocol):
    """Report to the compute service. It may get the same report twice."""

    def tell(self, instance_uuid: str, outcomes: Sequence[Outcome]) -> Mapping[str, Reception]:
        """Report the results of the binds for one instance.

        :returns: the result of each event, by the uuid of its ARQ.
        :raises NovaUnavailable: no usable answer; the events may have been accepted.
        """


class Presence(Enum):
    """List the states of a server in Nova."""

    THERE = "there"
    SOFT_DELETED = "soft-deleted"
    """The server can be restored: its disks, its requests and its resources are kept."""
    DELETED = "deleted"
    ABSENT = "not known"


class Server(NamedTuple):
    """Hold the state of one server.

    :param project_id: its project; None if Nova does not know the server.
    """

    presence: Presence
    project_id: str | None


class Servers(Protocol):
    """Look up servers of all projects. Every method raises ``NovaUnavailable`` if the result is unknown."""

    def own_project(self) -> str | None:
        """Return the project of the credentials, or None if it is unknown."""

    def not_listed(self, wanted: Collection[str]) -> frozenset[str]:
        """Return those of *wanted* that are missing in the list of the servers of all projects.

        Use it only as a first filter: the list lacks the servers of a cell that is down.

        :raises NovaUnavailable: also if the credentials may not list the servers of all projects.
        """

    def look_up(self, uuid: str) -> Server:
        """Return the state of one server.

        :raises NovaUnavailable: also if the credentials may not query deleted servers of all projects.
        """


PATH = "/os-server-external-events"
EVENT = "accelerator-request-bound"
MICROVERSION = "2.82"
"""The first microversion with the event."""

_RECEPTIONS = {
    200: Reception.TAKEN,
    400: Reception.NOT_UNDERSTOOD,
    404: Reception.UNKNOWN_INSTANCE,
    422: Reception.NO_HOST_YET,
}


class NovaClient:
    """Implement :class:`autoclave.nova.client.Nova`.

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
        except ksa.ClientException as error:  # of the connection to Nova or to Keystone, or no token
            raise NovaUnavailable(
                f"POST {PATH} was not sent, or not answered: {reason(NOVA, self._adapter, error)}"
            ) from error
        if response.status_code == 400:
            return dict.fromkeys((outcome.arq_uuid for outcome in outcomes), Reception.NOT_UNDERSTOOD)
        if response.status_code not in (200, 207):
            raise NovaUnavailable(
                f"POST {PATH} was answered {response.status_code}: {response.text[:200]}{hint(response.status_code)}"
            )
        received = _receptions(response)
        if not received.keys() >= {outcome.arq_uuid for outcome in outcomes}:
            raise _not_nova(response, "events are missing in the answer")
        return received


def hint(status: int) -> str:
    """Return the remedy for an answer with *status*; empty if none is known."""
    if status in (401, 403):
        return ". Check [nova] auth_type, its credentials and the roles of its user"
    if status == 404:
        return ". Is the compute endpoint, or [nova] endpoint_override, Nova's?"
    if status == 406:
        return f". Nova must support microversion {MICROVERSION}"
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


def http_adapter(conf: cfg.ConfigOpts) -> Any:
    """Return an adapter for the Nova of ``[nova]``, or None if ``auth_type`` is not set: then no Nova gets reports.

    Create one per process: it holds the connections and the token.

    :raises InvalidConfiguration: an option that auth_type needs is not set.
    """
    if not conf.nova.auth_type and not conf.nova.auth_section:
        return None
    return make_adapter(conf, NOVA, microversion=MICROVERSION)
