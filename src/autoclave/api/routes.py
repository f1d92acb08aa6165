"""Every path there is, and what answers at it."""

from typing import Any

import falcon

from autoclave.api import health, identity, metrics, versions
from autoclave.api.accelerator import accelerator_requests, attributes, deployables, device_profiles, devices
from autoclave.api.accelerator.device_status import DeviceDisable, DeviceEnable
from autoclave.api.context import Api
from autoclave.api.openapi import OpenAPI
from autoclave.api.operation import Resource, operations_of
from autoclave.api.operator import actions, burned
from autoclave.api.operator import devices as operator_devices
from autoclave.api.operator.explain import Explain

_BASES = ("", "/accelerator")
"""Clients follow the links of the version documents, which name the second whatever they were given."""


def add_all(app: "falcon.App[Any, Any]", api: Api) -> None:
    """Add the routes to *app*.

    :raises TypeError: a responder is not declared with :class:`~autoclave.api.operation.Operation`.
    """
    at_both, at_root = _accelerator(api), {**_operator(api), **_service(api)}
    at_both["/openapi.json"] = OpenAPI(api, at_both, at_root)
    for base in _BASES:
        for path, resource in at_both.items():
            add(app, f"{base}{path}" or "/", resource)
            unversioned = path.removeprefix("/v2")
            if unversioned != path and unversioned:
                add(app, f"{base}{unversioned}", resource)
    for path, resource in at_root.items():
        add(app, path, resource)


def add(app: "falcon.App[Any, Any]", path: str, resource: Resource) -> None:
    """Make *resource* answer at *path*.

    :raises TypeError: a responder is not declared.
    """
    operations_of(resource)
    app.add_route(path, resource)


def _accelerator(api: Api) -> dict[str, Resource]:
    arqs = accelerator_requests
    return {
        "": versions.Root(api),
        "/v2": versions.V2(api),
        "/v2/devices": devices.Devices(api),
        "/v2/devices/{uuid}": devices.Device(api),
        "/v2/devices/{uuid}/clean": devices.DeviceClean(api),
        "/v2/devices/{uuid}/disable": DeviceDisable(api),
        "/v2/devices/{uuid}/enable": DeviceEnable(api),
        "/v2/deployables": deployables.Deployables(api),
        "/v2/deployables/{uuid}": deployables.Deployable(api),
        "/v2/deployables/{uuid}/program": deployables.DeployableProgram(api),
        "/v2/attributes": attributes.Attributes(api),
        "/v2/attributes/{uuid}": attributes.Attribute(api),
        "/v2/device_profiles": device_profiles.DeviceProfiles(api),
        "/v2/device_profiles/{key}": device_profiles.DeviceProfile(api),
        "/v2/accelerator_requests": arqs.AcceleratorRequests(api),
        "/v2/accelerator_requests/{uuid}": arqs.AcceleratorRequest(api),
    }


def _operator(api: Api) -> dict[str, Resource]:
    of_device = {
        "": operator_devices.Device(api),
        "/history": operator_devices.History(api),
        "/hold": actions.Hold(api),
        "/release": actions.Release(api),
        "/accept": actions.Accept(api),
        "/forget": actions.Forget(api),
    }
    of_burned: dict[str, Resource] = {"": burned.BurnedDevice(api), "/release": burned.Release(api)}
    devices_root, burned_root = "/autoclave/v1/devices", "/autoclave/v1/burned"
    return {
        devices_root: operator_devices.Devices(api),
        **{f"{devices_root}/{{device}}{path}": resource for path, resource in of_device.items()},
        **{f"{devices_root}/{{device}}/{{address}}{path}": resource for path, resource in of_device.items()},
        burned_root: burned.BurnedDevices(api),
        **{f"{burned_root}/{{provider}}{path}": resource for path, resource in of_burned.items()},
        **{f"{burned_root}/{{provider}}/{{address}}{path}": resource for path, resource in of_burned.items()},
        "/autoclave/v1/explain": Explain(api),
    }


def _service(api: Api) -> dict[str, Resource]:
    paths: dict[str, Resource] = {"/healthcheck": health.Health(api), "/metrics": metrics.Metrics(api)}
    if api.conf.api.auth_strategy != "keystone":
        # With Keystone, clients ask Keystone.
        paths |= {"/identity": identity.Versions(api), "/identity/v3": identity.V3(api)}
    return paths
