"""Reclaim devices whose servers Nova has deleted without notice, or show them to an operator.

Nova loses the accelerator requests of a server that it deletes while the API is down. However, a server that Nova does
not show may still exist. The credentials may see one project only, the endpoint may belong to another region, or Nova's
database may have been restored.

A device is therefore reclaimed automatically only under three conditions:

- Nova records the server as deleted; or Nova has shown it before, and its credentials are proved to see all projects;
- two lookups, with a patience between them, find the server deleted;
- the agent of the host sees no guest that has the function.

If a condition is unknown, the device stays bound and waits for an operator.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from oslo_log import log as logging

from autoclave.conductor.binding import Unbinder
from autoclave.db import orphans
from autoclave.db.orphans import Bound
from autoclave.exceptions import AutoclaveError, NovaUnavailable, PlacementError
from autoclave.lifecycle.guests_seen import GuestsSeen
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.requests import take_back_orphan
from autoclave.lifecycle.transitions import Cause
from autoclave.nova.client import Presence, Servers
from autoclave.objects.base import RequestContext
from autoclave.rules.device_lifecycle import Actor

LOG = logging.getLogger(__name__)

MOST_LOOKUPS = 50
"""Servers that one round looks up individually. The next round continues after them."""
MOST_ALLOCATIONS = 20
"""Servers whose allocations one round reads, if Nova does not list its servers."""
_MOST_WITNESSES = 10
"""Witnesses that one round looks up, including failed lookups."""

_NOT_SHOWN = (
    "Nova shows neither the server nor any server of another project with a device. The [nova] credentials may lack "
    "access to other projects, or [nova] may name another cloud"
)


_NEVER_SEEN = (
    "Nova does not show the server and never showed it to Autoclave. Another service may have bound the request"
)


class Orphans:
    """Find orphaned devices, round by round. Several conductors may run rounds concurrently.

    :param guests: asks the agents for users of functions.
    :param unbinder: unbinds the requests of deleted servers.
    :param name: this conductor's name, for the history.
    :param patience: minimum time between the two lookups that find a server deleted.
    """

    def __init__(
        self, ports: Ports, servers: Servers, guests: GuestsSeen, unbinder: Unbinder, name: str, patience: timedelta
    ) -> None:
        self._ports = ports
        self._servers = servers
        self._guests = guests
        self._unbinder = unbinder
        self._name = name
        self._patience = patience
        self._last = ""
        """The server handled last, in either kind of round."""

    def look(self) -> None:
        """Run one round.

        :raises DatabaseUnavailable: results not recorded are found again by the next round.
        """
        with self._ports.db.read() as tx:
            requests = orphans.bound(tx)
        if not requests:
            return
        try:
            missing = self._servers.not_listed({each.instance_uuid for each in requests})
        except NovaUnavailable as error:
            LOG.warning("Nova does not list its servers; orphaned devices cannot be found: %s", error)
            self._without_nova(requests, f"Nova is unavailable ({error})")
            return
        listed = [each for each in requests if each.instance_uuid not in missing]
        self._see(listed)
        of_server = _by_server(each for each in requests if each.instance_uuid in missing)
        witnesses = _Witnesses(self._servers, listed)
        gone: list[Bound] = []
        for server in self._turns(of_server, MOST_LOOKUPS):
            try:
                gone += self._look_up(server, of_server[server], witnesses)
            except NovaUnavailable as error:
                LOG.warning("Lookup of server %s in Nova failed: %s", server, error)
                self._keep(of_server[server], f"Nova is unavailable ({error})")
                break  # the next round continues after this server
        self._give_back(gone)

    def _look_up(self, uuid: str, requests: Sequence[Bound], witnesses: "_Witnesses") -> Sequence[Bound]:
        """Look up one server, and return those of its *requests* that two lookups have found orphaned."""
        presence = self._servers.look_up(uuid).presence
        if presence in (Presence.THERE, Presence.SOFT_DELETED):
            self._see(requests)
            return ()
        # No witness is needed for DELETED: it shows all projects, and the Nova that had the server.
        if presence is Presence.ABSENT and not witnesses.seen():
            self._keep(requests, _NOT_SHOWN)
            return ()
        if presence is Presence.ABSENT and not all(each.server_seen for each in requests):
            self._keep(requests, _NEVER_SEEN)
            return ()
        now = self._ports.clock()
        ripe = []
        for each in requests:
            if each.orphan_since is not None and now - each.orphan_since >= self._patience:
                ripe.append(each)
            else:
                self._note([each], each.orphan_since or now, None)
        return ripe

    def _give_back(self, gone: Sequence[Bound]) -> None:
        users = self._guests.of(gone)
        for request in gone:
            if (reason := users[request.uuid]) is not None:
                self._keep([request], reason)
                continue
            context = RequestContext.admin()
            why = f"Nova has deleted server {request.instance_uuid}, and no guest has the device"
            cause = Cause(Actor.CONDUCTOR, self._name, context.request_id, why)
            if not take_back_orphan(self._ports, request, cause):
                continue
            LOG.warning("Device %s/%s is reclaimed: %s.", request.hostname, request.pci_address, why)
            try:
                self._unbinder.delete(context, [request.uuid])
            except AutoclaveError as error:
                LOG.warning(
                    "Unbind of device %s/%s is unfinished; a sweep continues it: %s",
                    request.hostname,
                    request.pci_address,
                    error,
                )

    def _without_nova(self, requests: Sequence[Bound], why: str) -> None:
        """Show orphaned devices, and devices without an allocation, which every existing server has."""
        self._keep([each for each in requests if each.orphan_since is not None], why)
        of_server = _by_server(each for each in requests if each.orphan_since is None)
        for server in self._turns(of_server, MOST_ALLOCATIONS):
            try:
                held = self._ports.placement.get_allocations(server).allocations
            except PlacementError as error:
                LOG.warning("Allocations of server %s could not be read: %s", server, error)
                return
            for each in of_server[server]:
                has = each.device_rp_uuid in held
                self._note([each], None, None if has else f"its server has no allocation for it, and {why}")

    def _keep(self, requests: Sequence[Bound], reason: str) -> None:
        for each in requests:
            if each.orphan_reason != reason:
                LOG.warning("Device %s/%s is not reclaimed: %s.", each.hostname, each.pci_address, reason)
            self._note([each], each.orphan_since, reason)

    def _see(self, requests: Sequence[Bound]) -> None:
        """Record that the servers of *requests* exist."""
        self._note(requests, None, None)
        unseen = [each for each in requests if not each.server_seen]
        if unseen:
            self._ports.db.transact(lambda tx: orphans.note_seen(tx, unseen))

    def _note(self, requests: Sequence[Bound], since: datetime | None, reason: str | None) -> None:
        changed = [each for each in requests if (each.orphan_since, each.orphan_reason) != (since, reason)]
        if changed:
            self._ports.db.transact(lambda tx: orphans.note(tx, changed, since, reason))

    def _turns(self, servers: Collection[str], most: int) -> Iterator[str]:
        """Yield at most *most* of *servers*, beginning after the last one.

        A round that ends early continues after the server that ended it, so that one failure cannot block the others.
        """
        for server in sorted(servers, key=lambda each: (each <= self._last, each))[:most]:
            self._last = server
            yield server


class _Witnesses:
    """Look for witnesses: servers with devices that Nova shows although they belong to other projects.

    A witness proves that Nova shows all projects, and that its servers have our devices. The result is cached for a
    round.
    """

    def __init__(self, servers: Servers, listed: Sequence[Bound]) -> None:
        self._servers = servers
        self._listed = listed
        self._seen: bool | None = None

    def seen(self) -> bool:
        """Return whether there are enough witnesses. A witness whose lookup fails is skipped.

        :raises NovaUnavailable: after failed lookups, too few witnesses are left to decide.
        """
        if self._seen is None:
            self._seen = self._look()
        return self._seen

    def _look(self) -> bool:
        own = self._servers.own_project()
        needed = 2 if own is None else 1  # if the credentials' project is unknown, one of two projects may be theirs
        projects: set[str | None] = set()
        failure: NovaUnavailable | None = None
        for server in self._candidates(own):
            try:
                found = self._servers.look_up(server)
            except NovaUnavailable as error:
                LOG.warning(
                    "Lookup of server %s in Nova failed; access to all projects is unverified: %s", server, error
                )
                failure = error
                continue
            if found.presence is Presence.THERE and found.project_id != own:
                projects.add(found.project_id)
            if len(projects) >= needed:
                return True
        if failure is not None:
            raise failure
        return False

    def _candidates(self, own: str | None) -> Sequence[str]:
        """Return the servers to look up: first one of each project, then the others."""
        others = [each for each in self._listed if own is None or each.project_id != own]
        one_of_each = {each.project_id: each.instance_uuid for each in others}
        return list(dict.fromkeys([*one_of_each.values(), *(each.instance_uuid for each in others)]))[:_MOST_WITNESSES]


def _by_server(requests: Iterable[Bound]) -> Mapping[str, list[Bound]]:
    found: defaultdict[str, list[Bound]] = defaultdict(list)
    for each in requests:
        found[each.instance_uuid].append(each)
    return found
