"""Every path there is, and what answers at it."""

from typing import Any

import falcon

from autoclave.api import health, identity, metrics, versions
from autoclave.api.accelerator import accelerator_requests, attributes, deployables, device_profiles, devices
from autoclave.api.context import Api
from autoclave.api.operator import devices as operator_devices
from autoclave.lifecycle import holds

_BASES = ("", "/accelerator")
"""Clients follow the links of the version documents, which name the second whatever they were given."""


def add_all(app: "falcon.App[Any, Any]", api: Api) -> None:
    """Add the routes to *app*."""
    for base in _BASES:
        for path, resource in _accelerator(api).items():
            app.add_route(f"{base}{path}" or "/", resource)
            unversioned = path.removeprefix("/v2")
            if unversioned != path and unversioned:
                app.add_route(f"{base}{unversioned}", resource)
    for path, resource in {**_operator(api), **_service(api)}.items():
        app.add_route(path, resource)


def _accelerator(api: Api) -> dict[str, object]:
    arqs = accelerator_requests
    return {
        "": versions.Root(api.conf),
        "/v2": versions.V2(api.conf),
        "/v2/devices": devices.Devices(api),
        "/v2/devices/{uuid}": devices.Device(api),
        "/v2/devices/{uuid}/clean": devices.DeviceClean(api),
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


def _operator(api: Api) -> dict[str, object]:
    of_device = {
        "": operator_devices.Device(api),
        "/history": operator_devices.History(api),
        "/hold": operator_devices.Say(api, holds.hold, needs_reason=True),
        "/release": operator_devices.Say(api, operator_devices.release),
        "/accept": operator_devices.Say(api, operator_devices.accept),
        "/forget": operator_devices.Say(api, operator_devices.forget),
    }
    root = "/autoclave/v1/devices"
    return {
        root: operator_devices.Devices(api),
        **{f"{root}/{{device}}{path}": resource for path, resource in of_device.items()},
        **{f"{root}/{{device}}/{{address}}{path}": resource for path, resource in of_device.items()},
    }


def _service(api: Api) -> dict[str, object]:
    paths: dict[str, object] = {"/healthcheck": health.Health(api.ports.db), "/metrics": metrics.Metrics(api)}
    if api.conf.api.auth_strategy == "noauth":
        # With Keystone, clients ask Keystone.
        paths |= {"/identity": identity.Versions(api.conf), "/identity/v3": identity.V3(api.conf)}
    return paths
