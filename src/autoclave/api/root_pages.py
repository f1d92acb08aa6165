"""``GET /healthcheck``: whether a load balancer should send requests here."""

import falcon
from oslo_log import log as logging

from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.schemas.versions import HEALTH
from autoclave.db import schema
from autoclave.exceptions import DatabaseUnavailable

LOG = logging.getLogger(__name__)


class Health(Resource):
    """200 when the database answers and has a schema, 503 otherwise.

    `autoclave up` also says how many of its hosts it has not looked at yet.

    A schema newer than this release is no illness: while a cloud is upgraded, old services run on it.
    """

    @Operation("Say whether the service is well", answers={200: HEALTH, 503: HEALTH})
    def on_get(self, _req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        resp.cache_control = ["no-store"]
        try:
            found = "ok" if schema.current(self._api.ports.db) is not None else "no schema; run 'autoclave db sync'"
        except DatabaseUnavailable as error:
            LOG.error("Not healthy: %s", error)
            found = "no answer"
        if found != "ok":
            resp.status = falcon.HTTP_503
        resp.media = {"status": "ok" if found == "ok" else "unavailable", "database": found}
        if self._api.hosts_unknown is not None:
            resp.media["hosts_not_yet_known"] = self._api.hosts_unknown()
