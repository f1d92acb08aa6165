"""``/autoclave/v1/functions``: the PCI functions that instances get by flavor."""

from typing import Any

import falcon

from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.operator.waiting import function_waits_for
from autoclave.api.query import Argument
from autoclave.api.schemas.functions import FUNCTIONS
from autoclave.db import pci
from autoclave.db.pci import FunctionRecord, ProviderRecord

_HOST = Argument("hostname", "Only functions of this host.")


class Functions(Resource):
    """``GET /autoclave/v1/functions``, in order of host and address."""

    @Operation("List the PCI functions", rule="autoclave:function:get", query=(_HOST,), answers={200: FUNCTIONS})
    def on_get(self, _req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        hostname = asked.query.get("hostname")
        with self._api.ports.db.read() as tx:
            functions = pci.functions(tx, hostname)
            providers = {row.id: row for row in pci.providers(tx, hostname)}
        resp.media = {
            "functions": [
                _shown(each, providers[each.provider_id]) for each in functions if each.provider_id in providers
            ]
        }


def _shown(function: FunctionRecord, provider: ProviderRecord) -> dict[str, Any]:
    return {
        "hostname": function.hostname,
        "pci_address": function.address,
        "dev_type": function.dev_type,
        "vendor_id": function.vendor_id,
        "product_id": function.product_id,
        "managed": function.managed,
        "rp_uuid": provider.uuid,
        "resource_class": provider.resource_class,
        "traits": sorted(provider.trait_names),
        "one_time_use": provider.one_time_use,
        "burned": provider.burned,
        "instance_uuid": function.instance_uuid,
        "missing": function.missing,
        "unreadable_reason": provider.unreadable_reason,
        "waiting_for": function_waits_for(provider),
    }
