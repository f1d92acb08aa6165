"""Rename a host together with the records of its devices.

While a rename is recorded, no agent serves either name (:func:`require_settled_name`). An interrupted rename therefore
cannot make an agent take a burned device for a new one. Running the same command again completes it.

The steps are:

- record the rename;
- rename the providers in Placement, the root last;
- rename every row in one transaction;
- rename what the host itself stores;
- remove the record.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.db import agents as agent_rows
from autoclave.db import devices as device_rows
from autoclave.db import hosts, instances, pci
from autoclave.db.columns import utcnow
from autoclave.db.engine import Database
from autoclave.exceptions import Conflict, InvalidConfiguration, NotFound
from autoclave.lifecycle.transitions import Cause, remark
from autoclave.placement.client import PlacementClient
from autoclave.placement.provider_tree import delete_provider, rename_provider
from autoclave.placement.records import Provider
from autoclave.rules.pci_inventory import FUNCTIONS_DRIVER

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Carried:
    """Count the records under the new name."""

    devices: int
    pci_providers: int
    instances: int


class HostRename:
    """Rename one host.

    :param dead: run ids of agents known to be dead, however recently they were seen.
    :param patience: silence after which an agent counts as dead.
    :param owns_root: Autoclave creates the root provider, not nova-compute.
    :param clock: returns the current time, in UTC without a time zone.
    """

    def __init__(
        self,
        db: Database,
        placement: PlacementClient,
        hostname: str,
        new_hostname: str,
        cause: Cause,
        *,
        dead: Collection[str],
        patience: timedelta,
        owns_root: bool,
        clock: Callable[[], datetime] = utcnow,
    ) -> None:
        self._db = db
        self._placement = placement
        self._clock = clock
        self._old = hostname
        self._new = new_hostname
        self._cause = replace(cause, reason=f"host {hostname} is named {new_hostname} now")
        self._dead = dead
        self._patience = patience
        self._owns_root = owns_root

    def begin(self) -> None:
        """Record the rename, or find it recorded already. From then on no agent starts under either name.

        :raises NotFound: no row names the host.
        :raises Conflict: an agent of either name is alive, the new name has devices, another rename of either name is
            incomplete, or the root providers in Placement do not permit the rename.
        :raises PlacementError: Placement cannot be read.
        """
        self._roots()
        self._db.transact(self._record)
        try:
            # An agent that registered concurrently did not see the record, and is found here.
            with self._db.read() as tx:
                self._require_dead(tx)
        except Conflict:
            if not self._carried():
                self._db.transact(lambda tx: hosts.delete_rename(tx, self._old))
            raise

    def carry_over(self) -> Carried:
        """Rename the providers, then the rows. Work already done is skipped.

        :raises Conflict: see :meth:`begin`.
        :raises PlacementError: Placement failed; the rename is incomplete.
        """
        self._rename_providers()
        return self._db.transact(self._rename_rows)

    def finish(self) -> None:
        """Remove the record of the rename, so that agents may serve the new name."""
        self._db.transact(lambda tx: hosts.delete_rename(tx, self._old))
        LOG.info("Host %s is named %s now, by %s.", self._old, self._new, self._cause)

    def _record(self, tx: Connection) -> None:
        begun = hosts.about(tx, self._old, self._new)
        for other in begun:
            if (other.hostname, other.new_hostname) != (self._old, self._new):
                raise Conflict(
                    f"Renaming host {other.hostname} to {other.new_hostname} is not complete. Run `autoclave host "
                    f"rename {other.hostname} {other.new_hostname}` again first."
                )
        if begun:
            return
        if not hosts.is_known(tx, self._old):
            raise NotFound(f"Host {self._old} not found. `autoclave host list` shows the hosts.")
        if hosts.has_devices(tx, self._new):
            raise Conflict(
                f"Host {self._new} has devices, PCI functions or instances of its own: two hosts cannot become one. "
                "Choose another name, or remove that host first."
            )
        self._require_dead(tx)
        hosts.insert_rename(tx, self._old, self._new, str(self._cause))

    def _require_dead(self, tx: Connection) -> None:
        for name in (self._old, self._new):
            agent = agent_rows.get(tx, name)
            if agent is None or agent.run_id in self._dead:
                continue
            silent = self._clock() - agent.last_seen
            if silent < self._patience:
                raise Conflict(
                    f"The agent of host {name} was last seen {silent.total_seconds():.0f} s ago. Stop it, and try "
                    f"again {self._patience.total_seconds():.0f} s after that."
                )

    def _carried(self) -> bool:
        with self._db.read() as tx:
            return not hosts.is_known(tx, self._old)

    def _roots(self) -> tuple[Provider | None, Provider | None]:
        """Return the root providers of both names; refuse if the one of the new name cannot be deleted.

        :raises Conflict: see :meth:`begin`.
        """
        former, present = self._placement.find_provider(self._old), self._placement.find_provider(self._new)
        if former is not None and not self._owns_root:
            raise Conflict(
                f"The root provider {self._old} ({former.uuid}) belongs to nova-compute. Rename the host in Nova "
                f"first, then run `openstack resource provider set --name {self._new} {former.uuid}`."
            )
        if former is not None and present is not None and not _is_empty(self._placement, present):
            raise Conflict(
                f"Placement has a root provider {self._new} ({present.uuid}) with providers or allocations of its own, "
                f"next to {self._old} ({former.uuid}). Remove what is not this host's, then try again."
            )
        return former, present

    def _rename_providers(self) -> None:
        former, present = self._roots()
        if former is not None and present is not None:
            delete_provider(self._placement, present.uuid)
        root = former or present
        if root is None:
            return  # the agent creates it under the new name
        tree = self._placement.providers_in_tree(root.uuid)
        for provider in sorted(tree, key=lambda each: each.uuid == root.uuid):
            name = hosts.renamed(provider.name, self._old, self._new)
            if name != provider.name:
                rename_provider(self._placement, provider.uuid, name)

    def _rename_rows(self, tx: Connection) -> Carried:
        moved = hosts.is_known(tx, self._old)
        hosts.rename(tx, self._old, self._new)
        devices = device_rows.list_all(tx, hostname=self._new)
        for device in devices if moved else ():
            remark(tx, device, "host_renamed", self._cause, {})
        functions = len(pci.providers(tx, self._new, driver=FUNCTIONS_DRIVER))
        return Carried(len(devices) - functions, functions, len(instances.on_host(tx, self._new)))


def require_settled_name(tx: Connection, hostname: str) -> None:
    """Refuse to serve a host that is being renamed.

    :raises InvalidConfiguration: a rename of the host is incomplete.
    """
    for rename in hosts.about(tx, hostname):
        raise InvalidConfiguration(
            f"renaming host {rename.hostname} to {rename.new_hostname} is not complete; run `autoclave host rename "
            f"{rename.hostname} {rename.new_hostname}` again, then start the agent as {rename.new_hostname}",
            option="[agent] resource_provider_name",
        )


def _is_empty(placement: PlacementClient, root: Provider) -> bool:
    alone = [each.uuid for each in placement.providers_in_tree(root.uuid)] == [root.uuid]
    return alone and not any(placement.get_usages(root.uuid).values())
