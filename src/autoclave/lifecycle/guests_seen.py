"""Ask agents which guests use the PCI functions of devices that are to be reclaimed."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

from autoclave.db import agents as agent_rows
from autoclave.db.orphans import Bound
from autoclave.exceptions import AutoclaveError, RPCError
from autoclave.lifecycle.ports import Ports
from autoclave.objects.base import RequestContext
from autoclave.rpc.agent_api import FUNCTION_USERS, AgentAPI
from autoclave.rules.pci_address import PCIAddress

UNSEEN = "it cannot be looked at"
"""Prefix of the agent's answer for a function whose users are unknown."""


class GuestsSeen:
    """Ask each agent once for all functions of its host.

    :param patience: maximum silence of an agent that is still asked; asking a dead one costs a timeout.
    """

    def __init__(self, ports: Ports, agents: AgentAPI, patience: timedelta) -> None:
        self._ports = ports
        self._agents = agents
        self._patience = patience

    def of(self, requests: Sequence[Bound]) -> Mapping[str, str | None]:
        """Return why each request must not be given back, by uuid; None if the agent sees no guest using the function.

        An unknown user counts as a reason.
        """
        of_host: defaultdict[str, list[Bound]] = defaultdict(list)
        answers: dict[str, str | None] = {}
        for each in requests:
            if _is_function(each.address):
                of_host[each.hostname].append(each)
            else:
                answers[each.uuid] = f"no agent can tell which guest has {each.address}, which is no PCI function"
        for host, held in of_host.items():
            answers |= self._of_host(host, held)
        return answers

    def users(self, host: str, addresses: Collection[str]) -> list[str]:
        """Describe the guests and programs that the agent of *host* sees using one of the functions.

        A function that cannot be inspected contributes no user.

        :raises RPCError: the agent is unreachable, or cannot answer.
        """
        functions = [each for each in addresses if _is_function(each)]
        seen = self._ask(host, functions) if functions else {}
        return [user for users in seen.values() for user in users if not user.startswith(UNSEEN)]

    def _of_host(self, host: str, requests: Sequence[Bound]) -> Mapping[str, str | None]:
        try:
            seen = self._ask(host, {each.address for each in requests})
        except RPCError as error:
            return dict.fromkeys((each.uuid for each in requests), str(error))
        return {each.uuid: _reason(seen.get(each.address, ["the agent has not looked"])) for each in requests}

    def _ask(self, host: str, addresses: Collection[str]) -> Mapping[str, Sequence[str]]:
        """Return the users of *addresses*, as the agent of *host* sees them.

        :raises RPCError: the users are unknown; the message says why.
        """
        why_not = self._silent(host) or self._refusal(host)
        if why_not is not None:
            raise RPCError(why_not)
        try:
            seen = self._agents.function_users(RequestContext.admin(), host, sorted(addresses))
        except AutoclaveError as error:
            raise RPCError(f"the agent of {host} cannot tell who has it: {error}") from error
        return dict(seen)

    def _silent(self, host: str) -> str | None:
        with self._ports.db.read() as tx:
            agent = agent_rows.get(tx, host)
        if agent is None:
            return f"{host} has no agent that could tell who has it"
        if self._ports.clock() - agent.last_seen <= self._patience:
            return None
        # Omit the elapsed time: a reason that changes would be recorded and logged again in every round.
        seen = f"{agent.last_seen:%Y-%m-%d %H:%M:%S} UTC"
        return f"the agent of {host}, which must tell which guest has it, was last seen at {seen}"

    def _refusal(self, host: str) -> str | None:
        refused = self._agents.refusal(host, FUNCTION_USERS)
        return None if refused is None else f"the agent of {host} cannot be asked who has it: {refused}"


def _is_function(address: str) -> bool:
    try:
        PCIAddress.parse(address)
    except ValueError:
        return False
    return True


def _reason(users: Sequence[str]) -> str | None:
    return f"it is in use: {'; '.join(users)}" if users else None
