"""``/compute/v2.1/flavors/{flavor}/os-extra_specs``: resources, traits, aliases and device profiles of a flavor."""

from collections.abc import Callable

import falcon
from sqlalchemy.engine import Connection

from autoclave.api.body import storable
from autoclave.api.compute.flavors import find
from autoclave.api.context import Api
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.schemas.flavors import MAX_SPECS, SPEC, SPECS, VALIDATE_SPEC, VALIDATE_SPECS
from autoclave.db import flavors as flavor_rows
from autoclave.exceptions import BadRequest, NotFound

Specs = dict[str, str]


class ExtraSpecs(Resource):
    """``GET`` and ``POST /compute/v2.1/flavors/{flavor}/os-extra_specs``."""

    @Operation("List a flavor's extra specs", rule="os_compute_api:os-flavor-extra-specs:index", answers={200: SPECS})
    def on_get(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, flavor: str) -> None:
        with self._api.ports.db.read() as tx:
            resp.media = {"extra_specs": find(tx, asked.context, flavor).extra_specs}

    @Operation(
        "Set extra specs of a flavor, and leave its others as they are",
        rule="os_compute_api:os-flavor-extra-specs:create",
        body=VALIDATE_SPECS,
        answers={200: SPECS},
    )
    def on_post(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, flavor: str) -> None:
        given: Specs = asked.body["extra_specs"]
        _change(self._api, asked, flavor, lambda specs: specs | given)
        resp.media = {"extra_specs": given}


class ExtraSpec(Resource):
    """``GET``, ``PUT`` and ``DELETE /compute/v2.1/flavors/{flavor}/os-extra_specs/{spec}``."""

    @Operation("Show an extra spec", rule="os_compute_api:os-flavor-extra-specs:show", answers={200: SPEC})
    def on_get(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, flavor: str, spec: str) -> None:
        with self._api.ports.db.read() as tx:
            specs = find(tx, asked.context, flavor).extra_specs
        resp.media = {spec: _one(specs, flavor, spec)}

    @Operation(
        "Set an extra spec",
        rule="os_compute_api:os-flavor-extra-specs:update",
        body=VALIDATE_SPEC,
        answers={200: SPEC},
    )
    def on_put(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, flavor: str, spec: str) -> None:
        given: Specs = asked.body
        if set(given) != {spec}:
            raise BadRequest(f"The body must set {spec}, as the path does, and nothing else.")
        _change(self._api, asked, flavor, lambda specs: specs | given)
        resp.media = given

    @Operation("Delete an extra spec", rule="os_compute_api:os-flavor-extra-specs:delete", answers={200: None})
    def on_delete(self, _req: falcon.Request, _resp: falcon.Response, asked: Asked, flavor: str, spec: str) -> None:
        def without(specs: Specs) -> Specs:
            _one(specs, flavor, spec)
            return {key: value for key, value in specs.items() if key != spec}

        _change(self._api, asked, flavor, without)


def _change(api: Api, asked: Asked, flavorid: str, change: Callable[[Specs], Specs]) -> None:
    def work(tx: Connection) -> None:
        flavor = find(tx, asked.context, flavorid, lock=True)
        specs = change(flavor.extra_specs)
        if len(specs) > MAX_SPECS:
            raise BadRequest(f"The flavor would have {len(specs)} extra specs; {MAX_SPECS} is the most.")
        flavor_rows.update(tx, flavor, {"extra_specs": storable(specs, "The flavor's extra specs")})

    api.ports.db.transact(work)


def _one(specs: Specs, flavorid: str, spec: str) -> str:
    if spec not in specs:
        raise NotFound(f"Flavor {flavorid} has no extra spec {spec}.")
    return specs[spec]
