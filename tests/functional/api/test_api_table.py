"""Every method of every path, asked by everybody. A new route must say here who may use it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from api_world import HOST, REMOVE_OPS, World, new_uuid
from keystone_double import Keystone
from keystone_world import ask, cloud, keystone
from routed import routed

from autoclave.db.devices import DeviceRecord
from autoclave.rules.device_lifecycle import DeviceState
from burnedrows import OneTimeUse

pytestmark = pytest.mark.matrix

__all__ = ["cloud", "keystone"]

GROUPS = [{"resources:CUSTOM_NVME_144D_A808": "1"}]
BITSTREAM = [{"path": "/bitstream_id", "op": "replace", "value": [{"image_uuid": new_uuid()}]}]
STRANGER = {"device_state": DeviceState.ERROR, "found_serial": "S2", "found_drive_model": "Model 2"}

CALLERS: dict[str, tuple[str | None, str | None]] = {
    "nobody": (None, None),
    "reader": ("reader", None),
    "member": ("member", None),
    "manager": ("manager", None),
    "admin": ("admin", None),
    "service": ("nova", None),
    "another project's member": ("other", None),
    "Nova for a member": ("member", "nova"),
    "Nova for another project's member": ("other", "nova"),
}
"""The caller's token, and the service token beside it."""


class Objects:
    """What the paths and bodies below name: made anew for each request, since some requests end them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._made = 0

    def device(self, **changes: Any) -> DeviceRecord:
        self._made += 1
        return self.world.add_device(f"{self._made >> 8:04x}:{self._made & 0xFF:02x}:00.0", **changes)

    def burned(self) -> tuple[str, str]:
        """The uuid of the provider of a burned device, and its address."""
        self._made += 1
        address = f"{self._made >> 8:04x}:{self._made & 0xFF:02x}:00.0"
        devices = OneTimeUse(self.world.db, self.world.ports.placement, HOST)
        return devices.burned(address), address

    def profile(self) -> str:
        made = ask(self.world, "admin", "POST", "/v2/device_profiles", new_profile())
        assert made.status_code == 201
        return str(made.json["name"])

    def attribute(self) -> str:
        return str(ask(self.world, "admin", "POST", "/v2/attributes", self.new_attribute()).json["uuid"])

    def new_attribute(self) -> dict[str, Any]:
        deployable = self.world.provider(self.device())
        return {"deployable_id": deployable.id, "key": "rack", "value": "A7"}

    def arq(self) -> str:
        """A request of project blue."""
        made = ask(self.world, "member", "POST", "/v2/accelerator_requests", {"device_profile_name": self.profile()})
        return str(made.json["arqs"][0]["uuid"])

    def bind(self, arq: str) -> dict[str, Any]:
        return {arq: self.world.add_ops(self.device(), new_uuid())}

    def bound(self) -> str:
        arq = self.arq()
        bound = ask(self.world, "member", "PATCH", "/v2/accelerator_requests", self.bind(arq), service="nova")
        assert bound.status_code == 202
        return arq

    def instance(self) -> str:
        return str(ask(self.world, "admin", "GET", f"/v2/accelerator_requests/{self.bound()}").json["instance_uuid"])

    def deployable(self) -> str:
        return self.world.provider(self.device()).uuid

    def flavor(self, **specs: str) -> str:
        made = ask(self.world, "admin", "POST", "/compute/v2.1/flavors", new_flavor())
        flavor = str(made.json["flavor"]["id"])
        if specs:
            ask(self.world, "admin", "POST", f"/compute/v2.1/flavors/{flavor}/os-extra_specs", {"extra_specs": specs})
        return flavor

    def private_flavor(self) -> str:
        made = ask(self.world, "admin", "POST", "/compute/v2.1/flavors", new_flavor(is_public=False))
        return str(made.json["flavor"]["id"])

    def image(self, data: bytes | None = b"data", **values: Any) -> str:
        """An image of project blue."""
        made = ask(self.world, "member", "POST", "/image/v2/images", NEW_IMAGE)
        image = str(made.json["id"])
        if data is not None:
            assert ask(self.world, "member", "PUT", f"/image/v2/images/{image}/file", data).status_code == 204
        return image

    def public_image(self) -> str:
        image = self.image()
        publish = [{"op": "replace", "path": "/visibility", "value": "public"}]
        assert ask(self.world, "admin", "PATCH", f"/image/v2/images/{image}", publish).status_code == 200
        return image

    def new_server(self) -> dict[str, Any]:
        return {"server": {"name": "vm", "imageRef": self.public_image(), "flavorRef": self.flavor()}}

    def server(self, *actions: str) -> str:
        """A server of project blue, with which *actions* were done."""
        self.host()
        made = ask(self.world, "member", "POST", "/compute/v2.1/servers", self.new_server())
        assert made.status_code == 202
        server = str(made.json["server"]["id"])
        for action in actions:
            ask(self.world, "member", "POST", f"/compute/v2.1/servers/{server}/action", {action: None})
        return server

    def host(self) -> str:
        return self.world.add_host().uuid


def new_profile() -> list[dict[str, Any]]:
    return [{"name": f"p-{new_uuid()}", "groups": GROUPS}]


NEW_IMAGE = {"name": "i", "disk_format": "raw", "container_format": "bare"}


def new_flavor(*, is_public: bool = True) -> dict[str, Any]:
    wanted = {"name": f"f-{new_uuid()}", "ram": 1, "vcpus": 1, "disk": 0}
    return {"flavor": {**wanted, "os-flavor-access:is_public": is_public}}


Row = tuple[int, ...]
PUBLIC: Row = (200,) * 9
READERS: Row = (401, 200, 200, 200, 200, 403, 200, 200, 200)
HARDWARE: Row = (401, 403, 403, 200, 200, 403, 403, 403, 403)


ANYBODY: Row = (401, *(200,) * 8)


def members(status: int) -> Row:
    """In their own project, whichever that is."""
    return (401, 403, status, status, status, 403, status, status, status)


def members_of_blue(status: int) -> Row:
    return (401, 403, status, status, status, 403, 404, status, 404)


def readers_of_blue(status: int) -> Row:
    return (401, status, status, status, status, 403, 404, status, 404)


def admin(status: int) -> Row:
    return (401, 403, 403, 403, status, 403, 403, 403, 403)


@dataclass(frozen=True)
class Case:
    """:param fill: the query string, the body and the placeholders' values, of objects that are made for it."""

    method: str
    path: str
    statuses: Row
    fill: Callable[[Objects], Mapping[str, Any]] = lambda _objects: {}
    about: str = ""

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.about}".strip()


ARQS = "/v2/accelerator_requests"
HOSTS = "/autoclave/v1/hosts"
OURS = "/autoclave/v1/devices"
BURNED = "/autoclave/v1/burned"
BY_UUID, BY_PLACE = "/{device}", "/{device}/{address}"
BURNED_BY_UUID, BURNED_BY_PLACE = "/{provider}", "/{provider}/{address}"
TO_BIND: Row = (401, 403, 403, 403, 403, 403, 403, 202, 404)
"""Through Nova only, and Nova for its user's own project only."""
BOUND: Row = (401, 403, 403, 403, 403, 404, 404, 204, 404)
"""As above; a project that is another's, be it that of services, does not learn that there is such a request."""


def named(objects: Objects, **changes: Any) -> dict[str, Any]:
    device = objects.device(**changes)
    return {"uuid": device.uuid, "device": device.uuid}


def placed(objects: Objects, **changes: Any) -> dict[str, Any]:
    device = objects.device(**changes)
    return {"device": device.hostname, "address": device.pci_address}


def burned(objects: Objects) -> dict[str, Any]:
    return {"provider": objects.burned()[0]}


def burned_there(objects: Objects) -> dict[str, Any]:
    return {"provider": HOST, "address": objects.burned()[1]}


def to_bind(objects: Objects) -> dict[str, Any]:
    arq = objects.arq()
    return {"uuid": arq, "body": objects.bind(arq)}


def to_unbind(objects: Objects) -> dict[str, Any]:
    arq = objects.bound()
    return {"uuid": arq, "body": {arq: REMOVE_OPS}}


FLAVORS = "/compute/v2.1/flavors"
SERVERS = "/compute/v2.1/servers"
SERVER = f"{SERVERS}/{{server}}"
HYPERVISORS = "/compute/v2.1/os-hypervisors"
IMAGES = "/image/v2/images"
IMAGE = f"{IMAGES}/{{image}}"
SPECS = f"{FLAVORS}/{{flavor}}/os-extra_specs"
RENAME = [{"op": "replace", "path": "/name", "value": "n"}]


def with_spec(objects: Objects) -> dict[str, Any]:
    return {"flavor": objects.flavor(k="v"), "spec": "k"}


def with_item(objects: Objects) -> dict[str, Any]:
    server = objects.server()
    ask(objects.world, "member", "POST", f"{SERVERS}/{server}/metadata", {"metadata": {"k": "v"}})
    return {"server": server, "item": "k"}


COMPUTE_CASES = [
    *(Case("GET", path, PUBLIC) for path in ("/compute", "/compute/v2.1", "/image", "/image/v2")),
    Case("GET", FLAVORS, ANYBODY),
    Case("GET", f"{FLAVORS}/detail", ANYBODY),
    Case("POST", FLAVORS, admin(200), lambda _o: {"body": new_flavor()}),
    Case("GET", f"{FLAVORS}/{{flavor}}", ANYBODY, lambda o: {"flavor": o.flavor()}),
    Case(
        "PUT",
        f"{FLAVORS}/{{flavor}}",
        admin(200),
        lambda o: {"flavor": o.flavor(), "body": {"flavor": {"description": "d"}}},
    ),
    Case("DELETE", f"{FLAVORS}/{{flavor}}", admin(202), lambda o: {"flavor": o.flavor()}),
    Case("GET", f"{FLAVORS}/{{flavor}}/os-flavor-access", admin(200), lambda o: {"flavor": o.private_flavor()}),
    Case("GET", SPECS, READERS, lambda o: {"flavor": o.flavor()}),
    Case("POST", SPECS, admin(200), lambda o: {"flavor": o.flavor(), "body": {"extra_specs": {"k": "v"}}}),
    Case("GET", f"{SPECS}/{{spec}}", READERS, with_spec),
    Case("PUT", f"{SPECS}/{{spec}}", admin(200), lambda o: {**with_spec(o), "body": {"k": "w"}}),
    Case("DELETE", f"{SPECS}/{{spec}}", admin(200), with_spec),
    Case("GET", SERVERS, READERS),
    Case("GET", f"{SERVERS}/detail", READERS),
    Case("POST", SERVERS, members(202), lambda o: {"body": o.new_server()}),
    Case("GET", SERVER, readers_of_blue(200), lambda o: {"server": o.server()}),
    Case("PUT", SERVER, members_of_blue(200), lambda o: {"server": o.server(), "body": {"server": {"name": "n"}}}),
    Case("DELETE", SERVER, members_of_blue(204), lambda o: {"server": o.server()}),
    *(
        Case(
            "POST",
            f"{SERVER}/action",
            members_of_blue(202),
            lambda o, body=body, before=before: {"server": o.server(*before), "body": body},
            next(iter(body)),
        )
        for body, before in [
            ({"os-stop": None}, ()),
            ({"os-start": None}, ("os-stop",)),
            ({"reboot": {"type": "SOFT"}}, ()),
            ({"forceDelete": None}, ()),
        ]
    ),
    Case(
        "POST",
        f"{SERVER}/action",
        members_of_blue(202),
        lambda o: {"server": o.server(), "body": {"rebuild": {"imageRef": o.public_image()}}},
        "rebuild",
    ),
    Case("GET", f"{SERVER}/metadata", readers_of_blue(200), with_item),
    *(
        Case(
            method,
            f"{SERVER}/metadata",
            members_of_blue(200),
            lambda o: {"server": o.server(), "body": {"metadata": {"k": "v"}}},
        )
        for method in ("POST", "PUT")
    ),
    Case("GET", f"{SERVER}/metadata/{{item}}", readers_of_blue(200), with_item),
    Case(
        "PUT",
        f"{SERVER}/metadata/{{item}}",
        members_of_blue(200),
        lambda o: {**with_item(o), "body": {"meta": {"k": "v"}}},
    ),
    Case("DELETE", f"{SERVER}/metadata/{{item}}", members_of_blue(204), with_item),
    Case("GET", f"{SERVER}/os-instance-actions", readers_of_blue(200), lambda o: {"server": o.server()}),
    *(
        Case("GET", f"/compute/v2.1/{noun}", admin(200))
        for noun in (
            "os-services",
            "os-hypervisors",
            "os-hypervisors/detail",
            "os-aggregates",
            "os-migrations",
            "os-availability-zone/detail",
        )
    ),
    Case("GET", "/compute/v2.1/os-availability-zone", READERS),
    Case(
        "PUT",
        "/compute/v2.1/os-services/{service}",
        admin(200),
        lambda o: {"service": o.host(), "body": {"status": "enabled"}},
    ),
    Case("DELETE", "/compute/v2.1/os-services/{service}", admin(409), lambda o: {"service": o.host()}),
    Case("GET", f"{HYPERVISORS}/{{hypervisor}}", admin(200), lambda o: {"hypervisor": o.host()}),
    Case("GET", IMAGES, READERS),
    Case("POST", IMAGES, members(201), lambda _o: {"body": NEW_IMAGE}),
    Case("GET", IMAGE, readers_of_blue(200), lambda o: {"image": o.image()}),
    Case("PATCH", IMAGE, members_of_blue(200), lambda o: {"image": o.image(), "body": RENAME}),
    Case(
        "PATCH",
        IMAGE,
        (401, 403, 200, 200, 200, 403, 403, 200, 403),
        lambda o: {"image": o.public_image(), "body": RENAME},
        "of one that is public",
    ),
    Case("DELETE", IMAGE, members_of_blue(204), lambda o: {"image": o.image()}),
    Case("GET", f"{IMAGE}/file", readers_of_blue(200), lambda o: {"image": o.image()}),
    Case("PUT", f"{IMAGE}/file", members_of_blue(204), lambda o: {"image": o.image(None), "body": b"data"}),
]

CASES = [
    *COMPUTE_CASES,
    *(Case("GET", path, PUBLIC) for path in ("/", "/v2", "/openapi.json", "/healthcheck")),
    Case("GET", "/metrics", admin(200)),
    Case("GET", "/v2/devices", HARDWARE),
    Case("GET", "/v2/devices/{uuid}", HARDWARE, named),
    Case("POST", "/v2/devices/{uuid}/clean", admin(202), lambda o: named(o, device_state=DeviceState.ERROR)),
    Case("POST", "/v2/devices/{uuid}/disable", admin(200), named),
    Case("POST", "/v2/devices/{uuid}/enable", admin(200), named),
    Case("GET", "/v2/deployables", HARDWARE),
    Case("GET", "/v2/deployables/{uuid}", HARDWARE, lambda o: {"uuid": o.deployable()}),
    # no driver can write a bitstream: who may, is told that
    Case("PATCH", "/v2/deployables/{uuid}/program", admin(400), lambda o: {"uuid": o.deployable(), "body": BITSTREAM}),
    Case("GET", "/v2/attributes", HARDWARE),
    Case("POST", "/v2/attributes", admin(201), lambda o: {"body": o.new_attribute()}),
    Case("GET", "/v2/attributes/{uuid}", HARDWARE, lambda o: {"uuid": o.attribute()}),
    Case("DELETE", "/v2/attributes/{uuid}", admin(204), lambda o: {"uuid": o.attribute()}),
    Case("GET", "/v2/device_profiles", READERS),
    Case("POST", "/v2/device_profiles", admin(201), lambda _o: {"body": new_profile()}),
    Case("DELETE", "/v2/device_profiles", admin(204), lambda o: {"query": f"value={o.profile()}"}),
    Case("GET", "/v2/device_profiles/{key}", READERS, lambda o: {"key": o.profile()}),
    Case("DELETE", "/v2/device_profiles/{key}", admin(204), lambda o: {"key": o.profile()}),
    Case("GET", ARQS, READERS),
    Case(
        "POST",
        ARQS,
        (401, 403, 201, 201, 201, 201, 201, 201, 201),
        lambda o: {"body": {"device_profile_name": o.profile()}},
    ),
    Case("PATCH", ARQS, TO_BIND, to_bind, "to bind"),
    Case("PATCH", ARQS, TO_BIND, to_unbind, "to unbind"),
    Case("DELETE", ARQS, BOUND, lambda o: {"query": f"arqs={o.bound()}"}, "of one that is bound"),
    Case(
        "DELETE",
        ARQS,
        (401, 403, 204, 204, 204, 404, 404, 204, 404),
        lambda o: {"query": f"arqs={o.arq()}"},
        "of one that is not",
    ),
    # there is no such thing as an instance's being another's: it has no requests that the caller can see
    Case(
        "DELETE",
        ARQS,
        (401, 403, 403, 403, 403, 403, 403, 204, 204),
        lambda o: {"query": f"instance={o.instance()}"},
        "of an instance",
    ),
    Case("GET", f"{ARQS}/{{uuid}}", (401, 200, 200, 200, 200, 403, 404, 200, 404), lambda o: {"uuid": o.arq()}),
    Case("PATCH", f"{ARQS}/{{uuid}}", TO_BIND, to_bind, "to bind"),
    Case("PATCH", f"{ARQS}/{{uuid}}", TO_BIND, to_unbind, "to unbind"),
    Case("DELETE", f"{ARQS}/{{uuid}}", BOUND, lambda o: {"uuid": o.bound()}, "of one that is bound"),
    Case(
        "DELETE",
        f"{ARQS}/{{uuid}}",
        (401, 403, 204, 204, 204, 404, 404, 204, 404),
        lambda o: {"uuid": o.arq()},
        "of one that is not",
    ),
    # there is no such flavor: who may, is told that
    Case("GET", "/autoclave/v1/explain", admin(404), lambda _o: {"query": "flavor=f&image=i"}),
    Case("GET", HOSTS, admin(200)),
    Case("GET", f"{HOSTS}/{{host}}", admin(404), lambda _o: {"host": "nowhere"}),
    Case("POST", f"{HOSTS}/{{host}}/maintenance", admin(404), lambda _o: {"host": "nowhere", "body": {"reason": "x"}}),
    Case("POST", f"{HOSTS}/{{host}}/resume", admin(404), lambda _o: {"host": "nowhere", "body": {}}),
    Case("GET", OURS, admin(200)),
    *(
        case
        for which, names in ((BY_UUID, named), (BY_PLACE, placed))
        for case in (
            Case("GET", f"{OURS}{which}", admin(200), names),
            Case("GET", f"{OURS}{which}/history", admin(200), names),
            Case("POST", f"{OURS}{which}/hold", admin(200), lambda o, n=names: {**n(o), "body": {"reason": "x"}}),
            Case("POST", f"{OURS}{which}/release", admin(200), lambda o, n=names: {**n(o, held=True), "body": {}}),
            Case("POST", f"{OURS}{which}/clean", admin(202), lambda o, n=names: n(o, device_state=DeviceState.ERROR)),
            Case("POST", f"{OURS}{which}/forget", admin(200), lambda o, n=names: {**n(o, missing=True), "body": {}}),
            Case("POST", f"{OURS}{which}/take-back", admin(409), lambda o, n=names: {**n(o), "body": {}}),
            Case("POST", f"{OURS}{which}/accept", admin(200), lambda o, n=names: {**n(o, **STRANGER), "body": {}}),
        )
    ),
    Case("GET", "/autoclave/v1/functions", admin(200)),
    Case("GET", BURNED, admin(200)),
    *(
        case
        for which, names in ((BURNED_BY_UUID, burned), (BURNED_BY_PLACE, burned_there))
        for case in (
            Case("GET", f"{BURNED}{which}", admin(200), names),
            Case("GET", f"{BURNED}{which}/history", admin(200), names),
            Case("POST", f"{BURNED}{which}/release", admin(200), names),
        )
    ),
]


def test_every_method_of_every_path_is_tried_below(cloud: World) -> None:
    assert {(case.method, case.path) for case in CASES} == routed(cloud)


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory, keystone: Keystone) -> Iterator[Objects]:
    directory = tmp_path_factory.mktemp("table")
    config = directory / "autoclave.conf"
    config.write_text(keystone.config())
    world = World(directory, {("api", "auth_strategy"): "keystone"}, (str(config),))
    yield Objects(world)
    world.close()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_everybody_may_what_he_may_and_nothing_else(objects: Objects, case: Case) -> None:
    found = []
    for user, service in CALLERS.values():
        filled = dict(case.fill(objects))
        query, body = filled.pop("query", ""), filled.pop("body", None)
        path = case.path.format(**filled)
        answer = ask(objects.world, user, case.method, f"{path}?{query}" if query else path, body, service=service)
        found.append(answer.status_code)
    assert dict(zip(CALLERS, found, strict=True)) == dict(zip(CALLERS, case.statuses, strict=True))
