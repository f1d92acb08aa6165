"""A machine whose name has changed is recognized before its agent serves it under another name."""

import time
from datetime import timedelta

from oslo_log import log as logging

from autoclave.db import agents
from autoclave.db.agents import AgentRecord
from autoclave.exceptions import InvalidConfiguration
from autoclave.lifecycle.ports import Ports
from autoclave.rules.host_setup import HostHints, former_name

LOG = logging.getLogger(__name__)

_LONGEST_PAUSE = 1.0
"""Seconds between two looks at whether another agent is alive."""


class FormerHost:
    """The host of another name whose machine this one seems to be.

    :param patience: how long an agent may be silent before it counts as dead.
    """

    def __init__(self, ports: Ports, host: str, hints: HostHints, patience: timedelta) -> None:
        self._ports = ports
        self._host = host
        self._hints = hints
        self._patience = patience

    def require_none(self) -> None:
        """Refuse a start on a machine that is on record under another name.

        An agent that is alive there is another machine's, a clone of this one. One that was seen a moment ago may
        be alive: wait for its next sign of life, at most until it counts as dead.

        :raises InvalidConfiguration: both hints are those of a host whose agent is dead.
        :raises DatabaseUnavailable: nothing could be read.
        """
        former = self._find()
        if former is None:
            return
        end = self._ports.clock() + self._patience
        if self._may_live(former):
            LOG.warning(
                "Agent %s: this machine has the machine id and the product UUID of host %s, whose agent was seen a "
                "moment ago. Waiting until it is seen again, or counts as dead.",
                self._host,
                former.hostname,
            )
        while self._may_live(former) and self._ports.clock() < end:
            time.sleep(min(_LONGEST_PAUSE, self._patience.total_seconds() / 10))
            again = self._find()
            if again is None or (again.hostname, again.last_seen) != (former.hostname, former.last_seen):
                return
        raise InvalidConfiguration(
            f"this machine has the machine id and the product UUID of host {former.hostname}, whose agent is not "
            f"alive, so it seems to be that host, and the agent starts as {self._host}. Under another name its burned, "
            f"held and dirty devices would be unknown. Start it as {former.hostname}; if it has a new name, run "
            f"`autoclave host rename {former.hostname} {self._host}`; if it is another machine, give it a machine id "
            "of its own with systemd-machine-id-setup",
            option="[agent] resource_provider_name",
        )

    def _find(self) -> AgentRecord | None:
        with self._ports.db.read() as tx:
            known = {each.hostname: each for each in agents.list_all(tx)}
        hints = {name: HostHints(each.machine_id, each.product_uuid) for name, each in known.items()}
        name = former_name(self._host, self._hints, hints)
        return None if name is None else known[name]

    def _may_live(self, former: AgentRecord) -> bool:
        return self._ports.clock() - former.last_seen < self._patience
