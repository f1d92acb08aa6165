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

from autoclave.rules.device_states import DeviceState

EXAMPLES = settings(
    max_examples=10, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)

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
    yield made
    made.close()


@pytest.fixture(scope="module")
def operations(lived_in: World) -> dict[str, Any]:
    schema = schemathesis.openapi.from_wsgi("/openapi.json", lived_in.app)
    return {found.ok().label: found.ok() for found in schema.get_all_operations()}


def known(world: World, path: str) -> list[dict[str, str]]:
    """What the placeholders of *path* can be so that something is there."""
    noun = path.split("/")[2]
    if path.startswith("/v2"):
        [rows] = world.call("GET", f"/v2/{noun}").json.values()
        return [{"uuid": row["uuid"], "key": row["uuid"]} for row in rows]
    rows = world.call("GET", "/autoclave/v1/devices").json["devices"]
    if "{address}" in path:
        return [{"device": row["hostname"], "address": row["pci_address"]} for row in rows]
    return [{"device": row["uuid"]} for row in rows]


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
