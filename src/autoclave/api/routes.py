"""Map every path to its resource."""

from typing import Any

import falcon

from autoclave.api import metrics, root_pages
from autoclave.api.accelerator import arqs as accelerator_requests
from autoclave.api.accelerator import attributes, deployables, device_profiles, devices
from autoclave.api.accelerator.devices import DeviceDisable, DeviceEnable
from autoclave.api.admin import actions, functions, hosts, one_time_use
from autoclave.api.admin import devices as operator_devices
from autoclave.api.admin.actions import TakeBack
from autoclave.api.admin.explain import Explain
from autoclave.api.compute import extra_specs, flavors, keyed_items, servers, stubs
from autoclave.api.compute import hosts as compute_services
from autoclave.api.compute import hosts as hypervisors
from autoclave.api.compute import stubs as compute_versions
from autoclave.api.compute.actions import ServerAction
from autoclave.api.compute.common import ROOT
from autoclave.api.context import Api
from autoclave.api.image import files as image_versions
from autoclave.api.image import images
from autoclave.api.image.files import ImageFile
from autoclave.api.openapi import OpenAPI
from autoclave.api.operation import Resource, operations_of

_BASES = ("", "/accelerator")
"""List both prefixes: clients follow the links of the version documents, which name the second."""


def add_all(app: "falcon.App[Any, Any]", api: Api) -> None:
    """Add the routes to *app*.

    :raises TypeError: a responder is not declared with :class:`~autoclave.api.operation.Operation`.
    """
    at_both, at_root = _accelerator(api), {**_operator(api), **_service(api)}
    if api.conf.compute.enabled:
        at_root |= {**_compute(api), **_image(api)}
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
        "": root_pages.Root(api),
        "/v2": root_pages.V2(api),
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
        "/clean": actions.Clean(api),
        "/hold": actions.Hold(api),
        "/release": actions.Release(api),
        "/accept": actions.Accept(api),
        "/forget": actions.Forget(api),
        "/take-back": TakeBack(api),
    }
    of_burned: dict[str, Resource] = {
        "": one_time_use.BurnedDevice(api),
        "/history": one_time_use.History(api),
        "/release": one_time_use.Release(api),
    }
    devices_root, burned_root, hosts_root = "/autoclave/v1/devices", "/autoclave/v1/burned", "/autoclave/v1/hosts"
    return {
        devices_root: operator_devices.Devices(api),
        **{f"{devices_root}/{{device}}{path}": resource for path, resource in of_device.items()},
        **{f"{devices_root}/{{device}}/{{address}}{path}": resource for path, resource in of_device.items()},
        burned_root: one_time_use.BurnedDevices(api),
        **{f"{burned_root}/{{provider}}{path}": resource for path, resource in of_burned.items()},
        **{f"{burned_root}/{{provider}}/{{address}}{path}": resource for path, resource in of_burned.items()},
        "/autoclave/v1/functions": functions.Functions(api),
        hosts_root: hosts.Hosts(api),
        f"{hosts_root}/{{host}}": hosts.Host(api),
        f"{hosts_root}/{{host}}/maintenance": hosts.Maintenance(api),
        f"{hosts_root}/{{host}}/resume": hosts.Resume(api),
        "/autoclave/v1/explain": Explain(api),
    }


def _compute(api: Api) -> dict[str, Resource]:
    flavor, server = "/flavors/{flavor}", "/servers/{server}"
    below = {
        "": compute_versions.V21(api),
        "/flavors": flavors.Flavors(api),
        "/flavors/detail": flavors.FlavorsInDetail(api),
        flavor: flavors.Flavor(api),
        f"{flavor}/os-flavor-access": stubs.FlavorAccess(api),
        f"{flavor}/os-extra_specs": extra_specs.ExtraSpecs(api),
        f"{flavor}/os-extra_specs/{{spec}}": extra_specs.ExtraSpec(api),
        "/servers": servers.Servers(api),
        "/servers/detail": servers.ServersInDetail(api),
        server: servers.Server(api),
        f"{server}/action": ServerAction(api),
        f"{server}/metadata": keyed_items.Metadata(api),
        f"{server}/metadata/{{item}}": keyed_items.Item(api),
        f"{server}/os-instance-actions": stubs.InstanceActions(api),
        "/os-services": compute_services.Services(api),
        "/os-services/{service}": compute_services.ComputeService(api),
        "/os-hypervisors": hypervisors.Hypervisors(api),
        "/os-hypervisors/detail": hypervisors.HypervisorsInDetail(api),
        "/os-hypervisors/{hypervisor}": hypervisors.Hypervisor(api),
        "/os-aggregates": stubs.Aggregates(api),
        "/os-migrations": stubs.Migrations(api),
        "/os-availability-zone": stubs.Zones(api),
        "/os-availability-zone/detail": stubs.ZonesInDetail(api),
    }
    return {"/compute": compute_versions.Versions(api), **{f"{ROOT}{path}": found for path, found in below.items()}}


def _image(api: Api) -> dict[str, Resource]:
    return {
        "/image": image_versions.Versions(api),
        "/image/v2": image_versions.Versions(api),
        "/image/v2/images": images.Images(api),
        "/image/v2/images/{image}": images.Image(api),
        "/image/v2/images/{image}/file": ImageFile(api),
    }


def _service(api: Api) -> dict[str, Resource]:
    paths: dict[str, Resource] = {"/healthcheck": root_pages.Health(api), "/metrics": metrics.Metrics(api)}
    if api.conf.api.auth_strategy != "keystone":
        # With Keystone, clients send these requests to Keystone.
        paths |= {"/identity": root_pages.Versions(api), "/identity/v3": root_pages.V3(api)}
    return paths
