"""Who is served when several ask at once: stories with real threads, on SQLite, PostgreSQL and MariaDB.

After each of them, what was decided is whole: one winner, and losers that were told so.
"""

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.agent.cleaning import Cleanup
from autoclave.conductor.manager import ConductorManager
from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db import history as events
from autoclave.db.arqs import ARQRecord
from autoclave.db.devices import DeviceRecord
from autoclave.db.engine import Database, Result
from autoclave.drivers.base import AttachHandle, DiscoveredDevice
from autoclave.exceptions import ApiError, BadRequest, Conflict, NotFound
from autoclave.hardware.journal import ToolJournal
from autoclave.lifecycle.ports import Ports, RPCCleaners
from autoclave.lifecycle.register import register
from autoclave.lifecycle.reserve import settle
from autoclave.lifecycle.transitions import Cause
from autoclave.objects.base import RequestContext
from autoclave.rpc.inprocess import InProcessTransport
from autoclave.rpc.port import AGENT_TOPIC
from autoclave.rules.device_lifecycle import ACTIVE, Actor, ARQState, DeviceState, Event, must_be_reserved
from autoclave.rules.resource_names import OWNER_CYBORG
from autoclave.testing.placement import FakePlacement
from autoclave.testing.ports import HeldCasts
from dbfixtures import make_arq

pytestmark = pytest.mark.matrix

HOST = "compute-1"
CLASS = "CUSTOM_NVME_144D_A808"
PATIENCE = 60
"""Seconds that everybody waits for everybody else."""
A_WHILE = 0.5
"""Seconds that one waits for another who may be kept waiting by the database itself, which is what we hope."""


class Cloud:
    """Two conductors, a Placement, and an agent's mailbox around one database."""

    def __init__(self, database: Database) -> None:
        self.db = database
        placement = FakePlacement().client()
        self.casts = HeldCasts()
        transport = InProcessTransport(casts=self.casts)
        transport.serve(AGENT_TOPIC, HOST, object(), "1.1").start()
        self.ports = Ports(database, placement, RPCCleaners(transport))
        self.conductors = [ConductorManager(self.ports, f"conductor-{n}", 240) for n in (1, 2)]
        placement.ensure_resource_class(CLASS)

    def add_device(self, slot: int = 1) -> DeviceRecord:
        """A device as discovery leaves it, settled in Placement."""
        address = f"0000:{slot:02x}:00.0"
        found = DiscoveredDevice(
            pci_address=address,
            device_type="NVME",
            vendor="144d",
            product="a808",
            resource_class=CLASS,
            traits=[],
            attach_handles=[AttachHandle("PCI", {"bus": f"{slot:02x}"}, address)],
            std_board_info={"product_id": "a808", "pci_address": address},
            serial=f"S{slot}",
            drive_model="Model",
            cleanup_action="sanitize_crypto",
        )
        with self.db.write() as tx:
            cause = Cause(Actor.AGENT, HOST)
            made = register(tx, HOST, "nvme_driver", found, None, cause, clean_on_discovery=False, run_id="run-1")
            [deployable] = device_rows.deployables_of(tx, [made.id])
        provider = self.ports.placement.create_provider(deployable.rp_uuid, deployable.name)
        self.ports.placement.put_traits(provider.uuid, provider.generation, [OWNER_CYBORG])
        settle(self.db, self.ports.placement, made.uuid)
        return made

    def add_arqs(self, count: int) -> list[str]:
        with self.db.write() as tx:
            return [make_arq(tx).uuid for _ in range(count)]

    def request(self, arq: str, device: DeviceRecord, instance: str | None = None) -> dict[str, Any]:
        """What a PATCH asks for one ARQ; for an instance of its own if none is named."""
        with self.db.read() as tx:
            [deployable] = device_rows.deployables_of(tx, [device.id])
        return {
            "arq_uuid": arq,
            "hostname": HOST,
            "device_rp_uuid": deployable.rp_uuid,
            "instance_uuid": instance or str(uuid.uuid4()),
        }

    def bind(self, number: int, *requests: dict[str, Any]) -> None:
        """One PATCH, to one of the conductors."""
        self.conductors[number % 2].arq_bind(RequestContext.admin(), list(requests))

    def delete(self, number: int, *arqs: str) -> None:
        self.conductors[number % 2].arq_delete(RequestContext.admin(), list(arqs))

    def arq(self, arq_uuid: str) -> ARQRecord | None:
        with self.db.read() as tx:
            return arq_rows.get(tx, arq_uuid)

    def state(self, arq_uuid: str) -> ARQState | None:
        found = self.arq(arq_uuid)
        return found.state if found else None

    def device(self, device: DeviceRecord) -> DeviceRecord:
        with self.db.read() as tx:
            found = device_rows.get(tx, device.uuid)
        assert found is not None
        return found

    def assert_whole(self) -> None:
        """Requests, devices and Placement tell one story, and nobody is in the middle of anything."""
        asked_to_clean = {cast.arguments.split('"uuid": "')[1][:36] for cast in self.casts.pending}
        with self.db.read() as tx:
            views = arq_rows.views(tx)
            devices = device_rows.list_all(tx)
        for view in views:
            arq = view.arq
            assert arq.state in (ARQState.INITIAL, ARQState.BOUND, ARQState.BIND_FAILED, ARQState.UNBOUND)
            linked = [arq.device_id, arq.deployable_id, arq.attach_handle_id]
            assert all(linked) if arq.state is ARQState.BOUND else not any(linked)
            assert arq.lease_owner is None
        handles = [view.attach_handle_uuid for view in views if view.arq.state is ARQState.BOUND]
        assert len(set(handles)) == len(handles), "two requests hold one handle"
        for device in devices:
            held = [view for view in views if view.arq.device_id == device.id]
            if device.device_state is DeviceState.ALLOCATED:
                assert len(held) == 1 or (not held and device.uuid in asked_to_clean)
            else:
                assert device.device_state in (DeviceState.AVAILABLE, DeviceState.PENDING_CLEANING)
                assert not held
            assert not device.release_pending
            with self.db.read() as tx:
                [deployable] = device_rows.deployables_of(tx, [device.id])
            [inventory] = self.ports.placement.get_inventories(deployable.rp_uuid).records.values()
            assert inventory.reserved == (1 if must_be_reserved(device.offer) else 0)


@pytest.fixture
def cloud(database: Database) -> Cloud:
    return Cloud(database)


def at_once(*works: Callable[[], Any]) -> list[Exception | None]:
    """Run all of *works* at the same time; what each of them raised."""
    start = threading.Barrier(len(works))

    def attempt(work: Callable[[], Any]) -> Exception | None:
        start.wait(PATIENCE)
        try:
            work()
        except ApiError as error:
            return error
        return None

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(attempt, works))


@contextmanager
def meeting(database: Database, statement: str, count: int = 2) -> Iterator[None]:
    """Whoever is about to send *statement* for the first time waits a while for all the others to get there, too."""
    gathering, been = threading.Barrier(count), threading.local()

    def before(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        if sql.startswith(statement) and not hasattr(been, "here"):
            been.here = True
            try:
                gathering.wait(A_WHILE)
            except threading.BrokenBarrierError:
                return  # the database keeps the others waiting

    sa.event.listen(database.writer_engine, "before_cursor_execute", before)
    try:
        yield
    finally:
        sa.event.remove(database.writer_engine, "before_cursor_execute", before)


def winners(outcomes: Sequence[Exception | None]) -> list[int]:
    return [number for number, error in enumerate(outcomes) if error is None]


def test_of_two_binds_of_one_drive_one_gets_it_and_the_other_is_told(cloud: Cloud) -> None:
    drive, arqs = cloud.add_device(), cloud.add_arqs(2)
    requests = [cloud.request(arq, drive) for arq in arqs]
    with meeting(cloud.db, "SELECT devices.id"):
        outcomes = at_once(*(lambda n=n: cloud.bind(n, requests[n]) for n in range(2)))
    [won] = winners(outcomes)
    lost = outcomes[1 - won]
    assert isinstance(lost, Conflict)
    assert "it is allocated" in str(lost)
    assert [cloud.state(arqs[n]) for n in (won, 1 - won)] == [ARQState.BOUND, ARQState.BIND_FAILED]
    cloud.assert_whole()


def test_of_two_patches_of_one_request_one_binds_it_and_the_other_is_told(cloud: Cloud) -> None:
    drives, [arq] = [cloud.add_device(n) for n in (1, 2)], cloud.add_arqs(1)
    requests = [cloud.request(arq, drive) for drive in drives]
    with meeting(cloud.db, "UPDATE extended_accelerator_requests"):
        outcomes = at_once(*(lambda n=n: cloud.bind(n, requests[n]) for n in range(2)))
    [won] = winners(outcomes)
    assert isinstance(outcomes[1 - won], Conflict)
    bound = cloud.arq(arq)
    assert bound is not None
    assert (bound.state, bound.device_id) == (ARQState.BOUND, drives[won].id)
    assert cloud.device(drives[1 - won]).device_state is DeviceState.AVAILABLE
    cloud.assert_whole()


def test_of_two_patches_for_one_instance_one_binds_and_the_other_is_told(cloud: Cloud) -> None:
    """Each has a request and a drive of its own: no row that both of them write."""
    drives, arqs, instance = [cloud.add_device(n) for n in (1, 2)], cloud.add_arqs(2), str(uuid.uuid4())
    requests = [cloud.request(arq, drive, instance) for arq, drive in zip(arqs, drives, strict=True)]
    with meeting(cloud.db, "UPDATE extended_accelerator_requests"):
        outcomes = at_once(*(lambda n=n: cloud.bind(n, requests[n]) for n in range(2)))
    [won] = winners(outcomes)
    assert isinstance(outcomes[1 - won], BadRequest)
    assert "already has accelerator requests" in str(outcomes[1 - won])
    assert [cloud.state(arqs[n]) for n in (won, 1 - won)] == [ARQState.BOUND, ARQState.INITIAL]
    cloud.assert_whole()


def test_two_patches_that_want_the_same_two_drives_in_opposite_order_do_not_stop_each_other(cloud: Cloud) -> None:
    drives, arqs = [cloud.add_device(n) for n in (1, 2)], cloud.add_arqs(4)
    pairs = [
        [cloud.request(arqs[2 * n + m], drive) for m, drive in enumerate(drives[:: 1 if n == 0 else -1])]
        for n in range(2)
    ]
    for pair in pairs:  # as Nova sends them: all for one instance
        pair[1]["instance_uuid"] = pair[0]["instance_uuid"]
    outcomes = at_once(*(lambda n=n: cloud.bind(n, *pairs[n]) for n in range(2)))
    [won] = winners(outcomes)
    assert isinstance(outcomes[1 - won], Conflict)
    states = [cloud.state(request["arq_uuid"]) for request in (*pairs[won], *pairs[1 - won])]
    assert states == [ARQState.BOUND] * 2 + [ARQState.BIND_FAILED] * 2
    cloud.assert_whole()


def test_ten_binds_for_three_drives_end_with_three_winners(cloud: Cloud) -> None:
    drives, arqs = [cloud.add_device(n) for n in (1, 2, 3)], cloud.add_arqs(10)
    requests = [cloud.request(arq, drives[n % 3]) for n, arq in enumerate(arqs)]
    outcomes = at_once(*(lambda n=n: cloud.bind(n, requests[n]) for n in range(10)))
    won = winners(outcomes)
    assert sorted(n % 3 for n in won) == [0, 1, 2]
    assert {type(error) for error in outcomes if error} == {Conflict}
    assert {cloud.state(arqs[n]) for n in won} == {ARQState.BOUND}
    assert {cloud.state(arq) for n, arq in enumerate(arqs) if n not in won} == {ARQState.BIND_FAILED}
    assert all(cloud.device(drive).device_state is DeviceState.ALLOCATED for drive in drives)
    cloud.assert_whole()


class Interrupted(Database):
    """A database in which something happens after the first transaction of a bind."""

    def __init__(self, database: Database, happening: Callable[[], None]) -> None:
        super().__init__(database.writer_engine.url.render_as_string(hide_password=False))
        self._happening = happening

    def transact(self, work: Callable[[Connection], Result], *, serializable: bool = False) -> Result:
        result = super().transact(work, serializable=serializable)
        if serializable:
            self._happening()
        return result


def test_a_drive_that_is_forgotten_while_it_is_bound_fails_all_requests_of_the_patch(cloud: Cloud) -> None:
    stays, goes = cloud.add_device(1), cloud.add_device(2)
    arqs = cloud.add_arqs(2)
    instance = str(uuid.uuid4())
    requests = [cloud.request(arq, drive, instance) for arq, drive in zip(arqs, (stays, goes), strict=True)]

    def forgotten() -> None:
        with cloud.db.write() as tx:
            device_rows.delete(tx, goes)

    database = Interrupted(cloud.db, forgotten)
    conductor = ConductorManager(replace(cloud.ports, db=database), "conductor-3", 240)
    with pytest.raises(Conflict, match="No device has the resource provider"):
        conductor.arq_bind(RequestContext.admin(), requests)
    database.dispose()

    assert [cloud.state(arq) for arq in arqs] == [ARQState.BIND_FAILED] * 2
    assert cloud.device(stays).device_state is DeviceState.AVAILABLE
    cloud.assert_whole()


def test_a_delete_that_comes_while_the_drive_is_being_claimed_sends_it_to_be_cleaned_or_back(cloud: Cloud) -> None:
    """The delete reads the request before the drive is linked to it, and writes after."""
    drive, [arq] = cloud.add_device(), cloud.add_arqs(1)
    request = cloud.request(arq, drive)
    claiming, looked, claimed = threading.Event(), threading.Event(), threading.Event()
    me = threading.local()

    def before(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        if sql.startswith("UPDATE devices") and me.name == "bind" and not claiming.is_set():
            claiming.set()
            looked.wait(A_WHILE if cloud.db.backend == "sqlite" else PATIENCE)  # there, the look waits for the claim
        if sql.startswith("UPDATE extended_accelerator_requests") and me.name == "delete" and not looked.is_set():
            looked.set()
            claimed.wait(A_WHILE)

    def committed(_connection: Any) -> None:
        if me.name == "bind" and claiming.is_set():
            claimed.set()

    def bind() -> None:
        me.name = "bind"
        cloud.bind(1, request)

    def delete() -> None:
        me.name = "delete"
        assert claiming.wait(PATIENCE)
        cloud.delete(2, arq)

    sa.event.listen(cloud.db.writer_engine, "before_cursor_execute", before)
    sa.event.listen(cloud.db.writer_engine, "commit", committed)
    try:
        told, deleted = at_once(bind, delete)
    finally:
        sa.event.remove(cloud.db.writer_engine, "before_cursor_execute", before)
        sa.event.remove(cloud.db.writer_engine, "commit", committed)
    assert deleted is None
    assert told is None or isinstance(told, Conflict)
    assert cloud.arq(arq) is None
    assert cloud.device(drive).device_state is not DeviceState.ERROR
    cloud.assert_whole()


def test_a_bind_and_a_delete_of_one_request_end_in_its_end_whoever_is_first(cloud: Cloud) -> None:
    for slot in range(1, 6):
        drive, [arq] = cloud.add_device(slot), cloud.add_arqs(1)
        request = cloud.request(arq, drive)
        told, deleted = at_once(lambda r=request: cloud.bind(1, r), lambda a=arq: cloud.delete(2, a))
        assert deleted is None
        assert told is None or isinstance(told, Conflict | NotFound)
        assert cloud.arq(arq) is None
        cloud.assert_whole()


def test_two_deletes_of_one_request_ask_for_the_drive_to_be_cleaned_at_one_version(cloud: Cloud) -> None:
    drive, [arq] = cloud.add_device(), cloud.add_arqs(1)
    cloud.bind(1, cloud.request(arq, drive))
    outcomes = at_once(*(lambda n=n: cloud.delete(n, arq) for n in range(2)))
    assert all(error is None or isinstance(error, NotFound) for error in outcomes)
    assert winners(outcomes)
    assert cloud.arq(arq) is None
    assert len(cloud.casts.pending) == 1
    cloud.assert_whole()


class Pool:
    """Takes the work and never does it."""

    def __init__(self) -> None:
        self.taken: list[Any] = []

    def submit(self, work: Any, *arguments: Any) -> None:
        self.taken.append(arguments)


def test_of_two_requests_to_clean_one_drive_one_is_worked_on(cloud: Cloud, tmp_path: Any) -> None:
    drive, [arq], pool = cloud.add_device(), cloud.add_arqs(1), Pool()
    cloud.bind(1, cloud.request(arq, drive))
    cloud.delete(1, arq)
    cleanup = Cleanup(
        cloud.ports,
        {},
        ToolJournal(tmp_path),
        host=HOST,
        run_id="run-1",
        timeout=60,
        max_concurrent=2,
        pool=pool,  # type: ignore[arg-type]
    )
    dirty = cloud.device(drive)
    accepted: list[bool] = []

    def ask() -> None:
        accepted.append(cleanup.request(RequestContext.admin(), drive.uuid, dirty.state_version))

    with meeting(cloud.db, "UPDATE devices"):
        at_once(ask, ask)
    assert sorted(accepted) == [False, True]
    assert len(pool.taken) == 1
    pending = cloud.device(drive)
    assert pending.device_state is DeviceState.PENDING_CLEANING
    assert pending.state_version == dirty.state_version + 1
    with cloud.db.read() as tx:
        history = [line.event for line in events.history(tx, drive.uuid)]
        assert not [arq for arq in arq_rows.active_of_device(tx, drive.id) if arq.state in ACTIVE]
    assert history.count(Event.REQUEST_CLEANING.value) == 1
    cloud.assert_whole()
