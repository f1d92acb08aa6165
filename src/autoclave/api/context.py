"""What a resource needs: the service's parts, and who is asking."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import falcon

from autoclave.api.policy import Policy
from autoclave.api.waiting import WaitingRoom
from autoclave.lifecycle.guests_seen import GuestsSeen
from autoclave.lifecycle.ports import Ports
from autoclave.objects.base import RequestContext
from autoclave.rpc.agent_api import AgentAPI
from autoclave.rpc.conductor_api import ConductorAPI


@dataclass(frozen=True)
class Api:
    """The parts of the service, passed to every resource.

    :param guests: asks the agents which guests have a function.
    :param hosts_unknown: how many hosts of this process have not been looked at yet; None: it has none.
    :param waiting: has a place for each request that waits for another service.
    """

    conf: Any
    ports: Ports
    conductor: ConductorAPI
    agents: AgentAPI
    guests: GuestsSeen
    policy: Policy
    waiting: WaitingRoom
    hosts_unknown: Callable[[], int] | None = None

    @property
    def max_body(self) -> int:
        """``[api] max_request_body_size``."""
        return int(self.conf.api.max_request_body_size)

    def authorize(self, req: falcon.Request, rule: str) -> RequestContext:
        """The caller of *req*, who may do what *rule* governs.

        :raises Forbidden: the policy says no.
        """
        context: RequestContext = req.context.caller
        self.policy.require(context, rule)
        return context


class Callers:
    """Falcon middleware: turns what authentication left in the environment into a context.

    :param policy: says who is an administrator.
    :param is_public: tells the paths that are served without knowing who asks.
    """

    def __init__(self, policy: Policy, is_public: Any) -> None:
        self._policy = policy
        self._is_public = is_public

    def process_request(self, req: falcon.Request, _resp: falcon.Response) -> None:
        if self._is_public(req.path):
            return
        context = RequestContext.from_environ(req.env)
        context.is_admin = self._policy.allows(context, "admin_api")
        req.context.caller = context


class JSONOnly:
    """Falcon middleware: refuses callers who do not take JSON.

    :param exempt: matches the paths that answer in something else.
    """

    def __init__(self, exempt: re.Pattern[str]) -> None:
        self._exempt = exempt

    def process_request(self, req: falcon.Request, _resp: falcon.Response) -> None:
        if not self._exempt.fullmatch(req.path) and not req.client_accepts_json:
            raise falcon.HTTPNotAcceptable(description="This service answers in application/json only.")
