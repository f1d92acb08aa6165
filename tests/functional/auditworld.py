"""A host with an agent and the real Placement, audited; whoever edits records by hand is at work, too."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from agentworld import HOST, SANITIZING, AgentWorld, sanitizing_drive

from autoclave.audit.auditor import Auditor, HostView, Scope
from autoclave.audit.remedies import Remedies
from autoclave.db.columns import utcnow
from autoclave.db.tables import devices
from autoclave.placement.embedded import EmbeddedPlacement
from autoclave.placement.records import ConsumerAllocations, Inventory
from autoclave.rules.audit.kinds import Kind
from autoclave.rules.audit.model import Finding
from autoclave.testing.ports import GivenDomains
from autoclave.virt.domains import Domains

ALL = Scope()


class AuditedWorld(AgentWorld):
    """One drive that is erased by sanitize."""

    def __init__(self, tmp_path: Path, service: EmbeddedPlacement) -> None:
        super().__init__(tmp_path, [sanitizing_drive()], service=service)
        self.guests: Domains = GivenDomains()
        self._raw = service.client_session()

    @property
    def remedies(self) -> Remedies:
        return Remedies(self.db, self.placement, "ann")

    def audit(
        self,
        scope: Scope = ALL,
        *,
        meanwhile: Callable[[], object] = lambda: None,
        later: timedelta = timedelta(),
        on_the_host: bool = True,
    ) -> list[Finding]:
        """All findings.

        :param meanwhile: happens between the two looks.
        :param later: how late it is.
        :param on_the_host: or on a controller.
        """
        view = HostView(HOST, self.sim.paths, frozenset(), self.guests)
        auditor = Auditor(
            self.db,
            self.placement,
            [view] if on_the_host else [],
            clock=lambda: utcnow() + later,
            sleep=lambda _: meanwhile(),
        )
        return auditor.audit(scope, 5)

    def disagreements(self, **how: Any) -> set[Kind]:
        """The kinds of all findings that count."""
        return {finding.kind for finding in self.audit(**how) if finding.counts}

    def the(self, kind: Kind, **how: Any) -> Finding:
        """The one finding that counts, which is of this kind."""
        found = [finding for finding in self.audit(**how) if finding.counts]
        assert [each.kind for each in found] == [kind]
        return found[0]

    def fix(self) -> dict[Kind, str]:
        """Audit, do what may be done, and say what was."""
        return {finding.kind: done for finding, done in self.remedies.fix(self.audit()).items()}

    # By hand

    def set_row(self, address: str = SANITIZING, **values: Any) -> None:
        with self.db.write() as tx:
            tx.execute(devices.update().where(devices.c.pci_address == address).values(**values))

    def execute(self, statement: sa.Executable) -> None:
        with self.db.write() as tx:
            tx.execute(statement)

    def set_inventory(self, *foreign: str, **values: Any) -> None:
        """Write the inventory of the drive, and one of each foreign class besides."""
        provider = self.provider()
        [(name, record)] = self.onlooker.get_inventories(provider.uuid).records.items()
        for each in foreign:
            self.onlooker.ensure_resource_class(each)
        records = {name: replace(record, **values), **dict.fromkeys(foreign, Inventory(1, 0, 1, 1, 1, 1.0))}
        self.onlooker.put_inventories(provider.uuid, self.onlooker.get_provider(provider.uuid).generation, records)

    def set_traits(self, change: Callable[[set[str]], Iterable[str]]) -> None:
        provider = self.provider()
        present = self.onlooker.get_traits(provider.uuid)
        self.onlooker.put_traits(provider.uuid, present.generation, change(set(present.names)))

    def rename(self, uuid: str, name: str) -> None:
        """``openstack resource provider set --name``."""
        parent = self.onlooker.get_provider(uuid).parent
        body = {"name": name, **({"parent_provider_uuid": parent} if parent else {})}
        assert self._raw.put(f"/resource_providers/{uuid}", json=body).status_code == 200

    def allocate(self, consumer: str) -> None:
        provider = self.provider()
        [name] = self.onlooker.get_inventories(provider.uuid).records
        held = ConsumerAllocations(consumer, {provider.uuid: {name: 1}}, None, project_id="p", user_id="u")
        self.onlooker.put_allocations(held)

    def set_inventories_but(self, gone: str) -> None:
        """``openstack resource provider inventory delete``."""
        provider = self.provider()
        present = self.onlooker.get_inventories(provider.uuid)
        kept = {name: record for name, record in present.records.items() if name != gone}
        self.onlooker.put_inventories(provider.uuid, present.generation, kept)
