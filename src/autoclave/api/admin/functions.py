"""Serve ``/autoclave/v1/functions``: the PCI functions that instances get by flavor."""

from typing import Any

import falcon

from autoclave.api.admin.devices import function_waits_for
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.query import Argument
from autoclave.api.schema import BOOLEAN, STRING, UUID, listed, nullable, one_of, shape
from autoclave.db import pci
from autoclave.db.pci import FunctionRecord, ProviderRecord
from autoclave.rules.pci_inventory import DevType

FUNCTION = shape(
    "PCIFunction",
    {
        "hostname": STRING,
        "pci_address": STRING,
        "dev_type": one_of(DevType),
        "vendor_id": STRING,
        "product_id": STRING,
        "managed": BOOLEAN,
        "rp_uuid": {**UUID, "description": "Its resource provider; virtual functions share that of their card."},
        "resource_class": STRING,
        "traits": {"type": "array", "items": STRING},
        "one_time_use": BOOLEAN,
        "burned": BOOLEAN,
        "instance_uuid": {**nullable(UUID), "description": "The instance that has it."},
        "missing": {**BOOLEAN, "description": "Its host, or the configuration there, has it no more."},
        "unreadable_reason": {
            **nullable(STRING),
            "description": "Why its agent could not look at it for [agent] unreadable_patience: it is not offered.",
        },
        "waiting_for": {
            **nullable(STRING),
            "description": "Which change of the host or of [pci] device_spec takes effect on its provider later, and "
            "what that waits for; or why it cannot be looked at.",
        },
    },
)
FUNCTIONS = listed("PCIFunctions", "functions", FUNCTION)

_HOST = Argument("hostname", "Only functions of this host.")


class Functions(Resource):
    """Serve ``GET /autoclave/v1/functions``, in order of host and address."""

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
        "unreadable_reason": provider.device.unreadable_reason,
        "waiting_for": function_waits_for(provider),
    }
