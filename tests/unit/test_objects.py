"""Versioned objects and the request context, alone and across an upgrade."""

import json
import subprocess
import sys
import textwrap

import pytest
from oslo_context import context as oslo_context
from oslo_versionedobjects import exception as object_errors
from oslo_versionedobjects.base import VersionedObjectRegistry

from autoclave.exceptions import RPCUnavailable
from autoclave.objects.base import AutoclaveSerializer, Device, RequestContext
from autoclave.rpc import port
from autoclave.rules.device_lifecycle import DeviceState

SERIALIZER = AutoclaveSerializer()

FINGERPRINTS = {
    (
        "Device",
        "1.4",
    ): "created_at:DateTime? device_state:Enum(available,allocated,pending_cleaning,cleaning,spent,error)? "
    "hostname:String id:Integer model:String state_version:Integer status:Enum(enabled,maintaining) std_board_info:"
    "String? type:String updated_at:DateTime? uuid:UUID vendor:String vendor_board_info:String?",
}
"""The fields of every object at its version; ``?`` says that None is allowed."""


def fingerprint(cls) -> str:
    described = []
    for name, field in sorted(cls.fields.items()):
        values = getattr(field, "valid_values", None)
        of = f"({','.join(values)})" if values else ""
        described.append(f"{name}:{type(field).__name__.removesuffix('Field')}{of}{'?' if field.nullable else ''}")
    return " ".join(described)


def full_device(**changes) -> Device:
    values = {
        "id": 7,
        "uuid": "7c8a5f3b-2d4e-4a9c-b1e7-9f8d3c2a1b0e",
        "type": "NVME",
        "vendor": "144d",
        "model": "a808",
        "std_board_info": '{"product_id": "a808"}',
        "vendor_board_info": None,
        "hostname": "compute-1",
        "status": "enabled",
        "device_state": DeviceState.PENDING_CLEANING,
        "state_version": 12,
        "created_at": None,
        "updated_at": None,
    }
    return Device(**(values | changes))


def test_no_field_changes_without_a_new_version():
    known = {
        (name, classes[0].VERSION): fingerprint(classes[0])
        for name, classes in VersionedObjectRegistry.obj_classes().items()
        if classes[0].OBJ_PROJECT_NAMESPACE == "autoclave"
    }

    assert known == FINGERPRINTS, (
        "raise VERSION, teach obj_make_compatible to leave the new fields out for older services, then update this test"
    )


def test_a_device_travels_whole():
    sent = full_device()

    received = port.decode(port.encode(sent))

    assert {name: getattr(received, name) for name in Device.fields} == {
        name: getattr(sent, name) for name in Device.fields
    }


def test_an_older_agent_gets_a_device_without_what_it_does_not_know():
    primitive = full_device().obj_to_primitive(target_version="1.2")

    assert primitive["autoclave.version"] == "1.2"
    assert set(Device.fields) - set(primitive["autoclave.data"]) == {"device_state", "state_version"}


def test_a_device_of_an_older_agent_is_read_without_a_state():
    received = SERIALIZER.deserialize_entity(None, full_device().obj_to_primitive(target_version="1.2"))

    assert received.hostname == "compute-1"
    assert not received.obj_attr_is_set("device_state")
    assert not received.obj_attr_is_set("state_version")


@pytest.mark.parametrize(("version", "state"), [("1.4", "spent"), ("1.3", "error")])
def test_a_spent_device_is_in_error_for_an_agent_without_that_state(version, state):
    received = SERIALIZER.deserialize_entity(
        None, full_device(device_state=DeviceState.SPENT).obj_to_primitive(target_version=version)
    )

    assert (received.device_state, received.state_version) == (state, 12)


def test_a_spent_device_has_no_state_for_an_agent_without_states():
    primitive = full_device(device_state=DeviceState.SPENT).obj_to_primitive(target_version="1.2")

    assert "device_state" not in primitive["autoclave.data"]


@pytest.mark.parametrize("version", ["1.3", "1.4"])
def test_a_device_of_the_same_version_keeps_its_state(version):
    primitive = full_device().obj_to_primitive(target_version=version)

    assert primitive["autoclave.data"]["device_state"] == "pending_cleaning"
    assert primitive["autoclave.data"]["state_version"] == 12


def test_an_object_of_a_newer_version_is_refused_and_the_remedy_named():
    primitive = full_device().obj_to_primitive()
    primitive["autoclave.version"] = "1.5"

    with pytest.raises(object_errors.IncompatibleObjectVersion):
        SERIALIZER.deserialize_entity(None, primitive)
    with pytest.raises(RPCUnavailable, match=r"1\.5.*upgrade the older"):
        port.decode(json.dumps({"device": primitive}))


def test_an_object_that_this_side_does_not_know_is_refused():
    primitive = full_device().obj_to_primitive()
    primitive["autoclave.name"] = "Gadget"

    with pytest.raises(RPCUnavailable, match="Gadget"):
        port.decode(json.dumps(primitive))


def test_a_device_may_have_no_state_yet():
    assert full_device(device_state=None).device_state is None


@pytest.mark.parametrize(
    "wrong", [{"device_state": "dirty"}, {"status": "broken"}, {"uuid": None}, {"state_version": "new"}], ids=str
)
def test_a_device_with_an_impossible_value_cannot_be_made(wrong):
    with pytest.raises(ValueError):
        full_device(**wrong)


def test_a_context_travels_without_its_token():
    sent = RequestContext(
        user_id="anna", project_id="lab", roles=["reader"], service_roles=["service"], auth_token="gAAAA"
    )

    values = json.loads(json.dumps(sent.to_dict()))
    received = RequestContext.from_dict(values)

    assert "gAAAA" not in json.dumps(values)
    assert received.auth_token is None
    assert (received.request_id, received.user_id, received.project_id, received.roles, received.service_roles) == (
        sent.request_id,
        "anna",
        "lab",
        ["reader"],
        ["service"],
    )
    assert not received.is_admin


def test_the_systems_own_work_is_an_admins_and_has_its_own_request_id():
    first, second = RequestContext.admin(), RequestContext.admin()

    assert first.is_admin
    assert first.roles == ["admin"]
    assert first.request_id.startswith("req-")
    assert first.request_id != second.request_id
    assert RequestContext.admin("req-of-the-caller").request_id == "req-of-the-caller"


def test_log_lines_carry_the_request_id_of_the_newest_context():
    made = RequestContext.admin()

    assert oslo_context.get_current() is made
    assert made.get_logging_values()["request_id"] == made.request_id


def in_a_new_process(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_eventlet_stays_out_whatever_part_of_autoclave_is_imported():
    said = in_a_new_process(
        """
        import importlib, pkgutil, sys, socket, threading
        import autoclave
        for module in pkgutil.walk_packages(autoclave.__path__, "autoclave."):
            if module.name.startswith("autoclave.db.migrations."):  # alembic alone runs these
                continue
            if module.name == "autoclave.wsgi":  # starts the api when a server loads it
                continue
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:  # an extra that is not installed
                assert error.name.partition(".")[0] not in ("autoclave", "eventlet"), error
        import placement.deploy, futurist, oslo_messaging
        from oslo_service import backend
        assert "autoclave.rpc.messaging" in sys.modules
        print(sys.modules["eventlet"], backend.get_backend_type().value,
              socket.socket.__module__, type(threading.current_thread()).__module__)
        """
    )

    assert said.split() == ["None", "threading", "socket", "threading"]


def test_a_process_that_has_chosen_another_backend_is_told_so():
    said = in_a_new_process(
        """
        from oslo_service import backend
        backend.init_backend(backend.BackendType.EVENTLET)
        try:
            import autoclave.objects
        except Exception as error:
            print(type(error).__name__, error)
        """
    )

    assert said.startswith("AutoclaveError oslo.service already runs its 'eventlet' backend")
    assert "import autoclave before" in said
