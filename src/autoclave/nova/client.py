"""Report bind events to Nova.

Nova over HTTP: ``POST /os-server-external-events``.

How requests reach Nova: one keystoneauth1 adapter, made of the ``[nova]`` options.

What a conductor needs of the compute service: to tell how a bind ended, and to ask which servers are still there.

Nova, as far as it is told of binds.
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
    """Implements :class:`autoclave.nova.client.Nova`.

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


def http_adapter(conf: cfg.ConfigOpts) -> Any:
    """An adapter for the Nova of ``[nova]``, or None if ``auth_type`` is not set: then there is none to be told.

    Make one per process: it holds the connections and the token.

    :raises InvalidConfiguration: an option that auth_type needs is not set.
    """
    if not conf.nova.auth_type and not conf.nova.auth_section:
        return None
    return make_adapter(conf, NOVA, microversion=MICROVERSION)
