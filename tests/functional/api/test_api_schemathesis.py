"""What a machine makes of the OpenAPI document is answered as the document says, and never by a failure."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from api_world import World, new_uuid
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from autoclave.api.image.schemas import PATCH_TYPE
from autoclave.rules.device_lifecycle import DeviceState

pytestmark = pytest.mark.thorough

EXAMPLES = settings(max_examples=10, derandomize=True, database=None, suppress_health_check=list(HealthCheck))

schemathesis.serializer.alias(PATCH_TYPE, "application/json")

MORE_THAN_A_SCHEMA_SAYS = {
    "GET /v2/devices": "a marker is the uuid of a row, and each field needs a value",
    "GET /v2/deployables": "a marker is the uuid of a row, and each field needs a value",
    "GET /v2/attributes": "a marker is the uuid of a row",
    "GET /v2/device_profiles": "a marker is the uuid of a row",
    "GET /v2/accelerator_requests": "a marker is the uuid of a row",
    "GET /autoclave/v1/devices": "a marker is the uuid of a row",
    "GET /v2/device_profiles/{key}": "a name will do from 2.2 on only",
    "POST /v2/device_profiles": "what a group may ask for is checked key by key",
    "POST /v2/attributes": "some keys are discovery's",
    "PATCH /v2/deployables/{uuid}/program": "no driver writes bitstreams",
    "PATCH /v2/accelerator_requests": "all operations of one request belong together",
    "PATCH /v2/accelerator_requests/{uuid}": "all operations of one request belong together",
    "DELETE /v2/accelerator_requests": "either arqs or instance",
    "GET /compute/v2.1/flavors": "a marker is the id of a row",
    "GET /compute/v2.1/flavors/detail": "a marker is the id of a row",
    "GET /compute/v2.1/servers": "a marker is the uuid of a row",
    "GET /compute/v2.1/servers/detail": "a marker is the uuid of a row",
    "GET /compute/v2.1/os-hypervisors": "a marker is the uuid of a row",
    "GET /compute/v2.1/os-hypervisors/detail": "a marker is the uuid of a row",
    "GET /image/v2/images": "a marker is the uuid of a row",
    "POST /compute/v2.1/servers": "flavor and image must be there",
    "POST /compute/v2.1/servers/{server}/action": "the image must be there, and an action may not be served",
    "PUT /compute/v2.1/flavors/{flavor}/os-extra_specs/{spec}": "the body sets what the path names",
    "PUT /compute/v2.1/servers/{server}/metadata/{item}": "the body sets what the path names",
    "PUT /compute/v2.1/os-services/{service}": "a reason is for a host that is disabled",
    "POST /image/v2/images": "some attributes are read-only",
    "PATCH /image/v2/images/{image}": "an operation but removal needs a value, one that the attribute can have",
    "PUT /image/v2/images/{image}/file": "the image must have a format",
}
"""Operations that may answer 400 to what their schemas allow."""


@pytest.fixture(scope="module")
def lived_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(Path(tmp_path_factory.mktemp("lived-in")))
    made.see_agent()
    bound = made.add_device()
    made.add_device("0000:02:00.0", device_state=DeviceState.ERROR, state_reason="it failed")
    made.add_profile()
    made.bind(made.add_arq(), bound, new_uuid())
    made.add_arq()
    made.add_profile("unused")
    made.add_host()
    made.add_server(metadata={"k": "v"})
    made.compute("POST", f"/flavors/{made.add_flavor()}/os-extra_specs", {"extra_specs": {"k": "v"}})
    made.add_image("without data", None)
    yield made
    made.close()


@pytest.fixture(scope="module")
def operations(lived_in: World) -> dict[str, Any]:
    schema = schemathesis.openapi.from_wsgi("/openapi.json", lived_in.app)
    return {found.ok().label: found.ok() for found in schema.get_all_operations()}


def known(world: World, path: str) -> list[dict[str, str]]:
    """What the placeholders of *path* can be so that something is there."""
    noun = path.split("/")[2]
    if path.startswith(("/compute", "/image")):
        return known_of_compute(world, path)
    if path.startswith("/v2"):
        [rows] = world.call("GET", f"/v2/{noun}").json.values()
        return [{"uuid": row["uuid"], "key": row["uuid"]} for row in rows]
    if "{host}" in path:
        return [{"host": row["hostname"]} for row in world.call("GET", "/autoclave/v1/hosts").json["hosts"]]
    if "{provider}" in path:
        burned = world.call("GET", "/autoclave/v1/burned").json["burned"]
        if "{address}" in path:
            return [{"provider": row["hostname"], "address": row["pci_address"]} for row in burned]
        return [{"provider": row["rp_uuid"]} for row in burned]
    rows = world.call("GET", "/autoclave/v1/devices").json["devices"]
    if "{address}" in path:
        return [{"device": row["hostname"], "address": row["pci_address"]} for row in rows]
    return [{"device": row["uuid"]} for row in rows]


def known_of_compute(world: World, path: str) -> list[dict[str, str]]:
    *_, noun = path.partition("/{")[0].split("/")
    where = path.partition("/{")[0]
    [rows] = world.http.simulate_get(where).json.values()
    placeholder = {"images": "image"}.get(noun, noun.removeprefix("os-").removesuffix("s"))
    return [{placeholder: row["id"], "spec": "k", "item": "k"} for row in rows]


def faults_of(operation: Any, mode: GenerationMode, world: World) -> BaseException | None:
    rows = known(world, operation.path) if "{" in operation.path else []
    excluded = [positive_data_acceptance] if operation.label in MORE_THAN_A_SCHEMA_SAYS else []

    @EXAMPLES
    @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
    def answers_as_documented(case: Any, data: st.DataObject) -> None:
        if rows and mode is GenerationMode.POSITIVE and data.draw(st.booleans()):
            row = data.draw(st.sampled_from(rows))
            case.path_parameters = {name: row[name] for name in case.path_parameters}
        case.call_and_validate(excluded_checks=excluded)

    try:
        answers_as_documented()
    except Unsatisfiable:
        return None if mode is GenerationMode.NEGATIVE else AssertionError("nothing could be made")
    except (Exception, BaseExceptionGroup) as error:
        return error
    return None


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_every_operation_answers_as_the_document_says(
    lived_in: World, operations: dict[str, Any], mode: GenerationMode
) -> None:
    faults = {label: faults_of(operation, mode, lived_in) for label, operation in operations.items()}
    assert {label: str(fault) for label, fault in faults.items() if fault is not None} == {}


def test_what_is_said_of_the_operations_is_said_of_some(operations: dict[str, Any]) -> None:
    assert MORE_THAN_A_SCHEMA_SAYS.keys() <= operations.keys()
