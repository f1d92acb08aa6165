"""``/compute/v2.1/os-availability-zone``: the one zone that all hosts are in."""

import falcon

from autoclave.api.compute.host_states import host_states
from autoclave.api.compute.moments import novas_moment
from autoclave.api.compute.services import BINARY
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.schemas.compute_services import ZONES, ZONES_IN_DETAIL
from autoclave.rules.instance_states import ZONE

_AVAILABLE = {"available": True}


class Zones(Resource):
    """``GET /compute/v2.1/os-availability-zone``."""

    @Operation("List the availability zones", rule="os_compute_api:os-availability-zone:list", answers={200: ZONES})
    def on_get(self, _req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        resp.media = {"availabilityZoneInfo": [{"zoneName": ZONE, "zoneState": _AVAILABLE, "hosts": None}]}


class ZonesInDetail(Resource):
    """``GET /compute/v2.1/os-availability-zone/detail``."""

    @Operation(
        "List the availability zones with their hosts",
        rule="os_compute_api:os-availability-zone:detail",
        answers={200: ZONES_IN_DETAIL},
    )
    def on_get(self, _req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        with self._api.ports.db.read() as tx:
            states = host_states(tx, self._api)
        hosts = {
            state.record.hostname: {
                BINARY: {
                    "active": not state.disabled,
                    "available": state.up,
                    "updated_at": novas_moment(state.last_seen),
                }
            }
            for state in states
        }
        resp.media = {"availabilityZoneInfo": [{"zoneName": ZONE, "zoneState": _AVAILABLE, "hosts": hosts}]}
