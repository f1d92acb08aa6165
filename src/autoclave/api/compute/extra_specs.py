"""Serve ``/compute/v2.1/flavors/{flavor}/os-extra_specs``: resources, traits, aliases and device profiles."""

from collections.abc import Callable

import falcon
from sqlalchemy.engine import Connection

from autoclave.api.compute.flavors import MAX_SPECS, SPEC, SPECS, VALIDATE_SPEC, VALIDATE_SPECS, find
from autoclave.api.compute.keyed_items import Items, bounded, picked, require_only, without
from autoclave.api.context import Api
from autoclave.api.microversion import EXTRA_SPECS_CHECKED
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.db import flavors as flavor_rows
from autoclave.rules.extra_spec_values import require_valid


class ExtraSpecs(Resource):
    """Serve ``GET`` and ``POST /compute/v2.1/flavors/{flavor}/os-extra_specs``."""

    @Operation("List a flavor's extra specs", rule="os_compute_api:os-flavor-extra-specs:index", answers={200: SPECS})
    def on_get(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, flavor: str) -> None:
        with self._api.ports.db.read() as tx:
            resp.media = {"extra_specs": find(tx, asked.context, flavor).extra_specs}

    @Operation(
        "Set extra specs of a flavor, and keep its others",
        rule="os_compute_api:os-flavor-extra-specs:create",
        body=VALIDATE_SPECS,
        answers={200: SPECS},
    )
    def on_post(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, flavor: str) -> None:
        given: Items = asked.body["extra_specs"]
        _check(asked, given)
        _change(self._api, asked, flavor, lambda specs: specs | given)
        resp.media = {"extra_specs": given}


class ExtraSpec(Resource):
    """Serve ``GET``, ``PUT`` and ``DELETE /compute/v2.1/flavors/{flavor}/os-extra_specs/{spec}``."""

    @Operation("Show an extra spec", rule="os_compute_api:os-flavor-extra-specs:show", answers={200: SPEC})
    def on_get(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, flavor: str, spec: str) -> None:
        with self._api.ports.db.read() as tx:
            specs = find(tx, asked.context, flavor).extra_specs
        resp.media = picked(specs, spec, _has_no(flavor))

    @Operation(
        "Set an extra spec",
        rule="os_compute_api:os-flavor-extra-specs:update",
        body=VALIDATE_SPEC,
        answers={200: SPEC},
    )
    def on_put(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, flavor: str, spec: str) -> None:
        given = require_only(asked.body, spec)
        _check(asked, given)
        _change(self._api, asked, flavor, lambda specs: specs | given)
        resp.media = given

    @Operation("Delete an extra spec", rule="os_compute_api:os-flavor-extra-specs:delete", answers={200: None})
    def on_delete(self, _req: falcon.Request, _resp: falcon.Response, asked: Asked, flavor: str, spec: str) -> None:
        _change(self._api, asked, flavor, lambda specs: without(specs, spec, _has_no(flavor)))


def _check(asked: Asked, given: Items) -> None:
    if asked.version >= EXTRA_SPECS_CHECKED:
        require_valid(given)


def _change(api: Api, asked: Asked, flavorid: str, change: Callable[[Items], Items]) -> None:
    def work(tx: Connection) -> None:
        flavor = find(tx, asked.context, flavorid, lock=True)
        specs = bounded(change(flavor.extra_specs), MAX_SPECS, "extra specs of the flavor")
        flavor_rows.update(tx, flavor, {"extra_specs": specs})

    api.ports.db.transact(work)


def _has_no(flavorid: str) -> str:
    return f"Flavor {flavorid} has no extra spec"
