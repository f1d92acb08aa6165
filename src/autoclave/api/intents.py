"""What an operator says of a device over HTTP: recorded when it is answered, and told to Placement if that answers."""

from collections.abc import Callable

import falcon

from autoclave.api.operation import Asked
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import Actor

Action = Callable[[Ports, str, Cause], bool]
"""Does what the operator said of a device, and returns whether Placement agrees already."""


def say(ports: Ports, resp: falcon.Response, asked: Asked, uuid: str, action: Action) -> bool:
    """Do *action* to the device *uuid*, in the caller's name and for the reason in the body.

    A Placement that was away is told later: then the answer is 202 with ``{"placement_settled": false}``.

    :returns: whether Placement agrees already; what is answered then is the caller's.
    """
    context = asked.context
    cause = Cause(Actor.OPERATOR, context.user_id or "", context.request_id, asked.body.get("reason"))
    settled = action(ports, uuid, cause)
    if not settled:
        resp.status = falcon.HTTP_202
        resp.media = {"placement_settled": False}
    return settled
