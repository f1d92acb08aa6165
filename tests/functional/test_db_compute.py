"""Flavors, images, hosts and instances are kept whole, and an instance is moved by exactly one of those who try."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from oslo_db.exception import DBDuplicateEntry, DBError

import burnedrows
from autoclave.db import flavors, hosts, images, instances, pci
from autoclave.db.columns import utcnow
from autoclave.db.engine import Database
from autoclave.db.instances import Hostdev
from autoclave.db.pci import Addition, AdditionKind
from autoclave.db.tables import attach_handles
from autoclave.db.tables import instances as instances_table
from autoclave.rules.device_lifecycle import ARQState
from autoclave.rules.instance_states import PowerState, TaskState, VMState
from computerows import make_flavor, make_image, make_instance
from dbfixtures import make_arq, make_slot, sqlite_database

ROUNDS = 15
HOST = {
    "rp_uuid": "11111111-1111-1111-1111-111111111111",
    "hypervisor_type": "null",
    "hypervisor_version": 1,
    "vcpus": 4,
    "memory_mb": 8192,
    "local_gb": 100,
}


def test_of_two_who_move_an_instance_exactly_one_wins(database: Database) -> None:
    with database.write() as tx:
        made = [make_instance(tx) for _ in range(ROUNDS)]
    start = threading.Barrier(2, timeout=60)

    def claim(host: str) -> list[bool]:
        won = []
        for record in made:
            start.wait()
            with database.write() as tx:
                won.append(
                    instances.swap(
                        tx, record, expect_task=TaskState.SCHEDULING, task_state=TaskState.SPAWNING, host=host
                    )
                    is not None
                )
        return won

    with ThreadPoolExecutor(2) as pool:
        mine, theirs = pool.map(claim, ["mine", "theirs"])
    assert [a + b for a, b in zip(mine, theirs, strict=True)] == [1] * ROUNDS
    with database.read() as tx:
        assert len(instances.on_host(tx, "mine")) == sum(mine)
        assert len(instances.on_host(tx, "theirs")) == sum(theirs)


def test_a_swap_returns_the_instance_as_it_is_now(database: Database) -> None:
    with database.write() as tx:
        made = make_instance(tx)
        moved = instances.swap(
            tx, made, expect_task=TaskState.SCHEDULING, vm_state=VMState.ACTIVE, task_state=None, power_state=1
        )
        assert moved is not None
        assert (moved.vm_state, moved.task_state, moved.power) == (VMState.ACTIVE, None, PowerState.RUNNING)
        assert moved.state_version == made.state_version + 1
        assert instances.swap(tx, moved, expect_task=None, fault_code=500) is not None, "a task of none is a task too"


def test_a_swap_made_for_another_task_writes_nothing(database: Database) -> None:
    with database.write() as tx:
        made = make_instance(tx, task_state=TaskState.DELETING)
        for task in (None, TaskState.SPAWNING):
            assert instances.swap(tx, made, expect_task=task, vm_state=VMState.ACTIVE) is None
        assert instances.get(tx, made.uuid) == made


def test_a_swap_that_comes_late_writes_nothing(database: Database) -> None:
    with database.write() as tx:
        late = make_instance(tx)
        now = instances.swap(tx, late, expect_task=TaskState.SCHEDULING, host="h1")
        assert instances.swap(tx, late, expect_task=TaskState.SCHEDULING, host="h2") is None
        assert instances.get(tx, late.uuid) == now


def test_the_row_of_an_instance_goes_only_when_it_is_being_deleted(database: Database) -> None:
    with database.write() as tx:
        alive, dying = make_instance(tx), make_instance(tx, task_state=TaskState.DELETING)
        assert not instances.delete(tx, alive.uuid)
        assert instances.delete(tx, dying.uuid)
        assert not instances.delete(tx, dying.uuid)
        assert instances.list_for(tx) == [alive]


def test_instances_are_listed_newest_first_by_project_columns_and_pages(database: Database) -> None:
    with database.write() as tx:
        first = make_instance(tx, host="h1")
        other = make_instance(tx, project_id="other")
        last = make_instance(tx, host="h2", vm_state=VMState.ERROR, task_state=None)
    with database.read() as tx:
        assert instances.list_for(tx) == [last, other, first]
        assert instances.list_for(tx, project_id="project") == [last, first]
        assert instances.list_for(tx, project_id="project", after=last.uuid) == [first]
        assert instances.list_for(tx, limit=2) == [last, other]
        assert instances.list_for(tx, filters={"host": "h1"}) == [first]
        assert instances.list_for(tx, filters={"host": None}) == [other]
        assert instances.list_for(tx, project_id="other", filters={"vm_state": VMState.ERROR}) == []
        assert instances.on_host(tx, "h2") == [last]


def test_an_instance_keeps_what_it_was_asked_for(database: Database) -> None:
    with database.write() as tx:
        flavor = make_flavor(tx, extra_specs={"trait:CUSTOM_Größe": "required"})
        image = make_image(tx, properties={"trait:HW_X": "required"})
        made = make_instance(tx, flavor=flavor.snapshot, image=image.snapshot, metadata={"k": "ü"})
        flavors.delete(tx, flavor.flavorid)
        images.delete(tx, image.uuid)
        found = instances.get(tx, made.uuid, lock=True)
    assert found is not None
    assert found.flavor["extra_specs"] == {"trait:CUSTOM_Größe": "required"}
    assert found.image == {"name": "image", "properties": {"trait:HW_X": "required"}}
    assert found.metadata == {"k": "ü"}


def test_text_that_is_meant_to_be_an_object_is_refused_before_it_is_written_as_text(database: Database) -> None:
    with pytest.raises(DBError), database.write() as tx:
        make_flavor(tx, extra_specs='{"a": "b"}')


def test_flavors_are_listed_by_their_id_and_found_by_their_name(database: Database) -> None:
    with database.write() as tx:
        b = make_flavor(tx, flavorid="b", name="big", ram=2048)
        a = make_flavor(tx, flavorid="a", name="BIG", is_public=False)
        assert flavors.list_all(tx) == [a, b]
        assert flavors.list_all(tx, is_public=True) == [b]
        assert flavors.list_all(tx, is_public=False) == [a]
        assert flavors.list_all(tx, after="a") == [b]
        assert flavors.list_all(tx, limit=1) == [a]
        assert flavors.list_all(tx, min_ram=1024) == [b]
        assert flavors.list_all(tx, min_disk=2) == []
        assert flavors.find(tx, "big") == b
        flavors.update(tx, a, {"description": "d", "extra_specs": {"k": "v"}})
        changed = flavors.get(tx, "a", lock=True)
        assert changed is not None
        assert (changed.description, changed.extra_specs, changed.name) == ("d", {"k": "v"}, "BIG")
        assert flavors.delete(tx, "a")
        assert not flavors.delete(tx, "a")


@pytest.mark.parametrize("taken", ["flavorid", "name"])
def test_a_flavor_whose_name_or_id_is_taken_is_a_duplicate(database: Database, taken: str) -> None:
    with database.write() as tx:
        made = make_flavor(tx)
    with pytest.raises(DBDuplicateEntry), database.write() as tx:
        make_flavor(tx, **{taken: getattr(made, taken)})


def test_a_project_sees_its_own_images_and_public_ones(database: Database) -> None:
    with database.write() as tx:
        mine = make_image(tx, name="mine")
        make_image(tx, name="theirs", owner="other")
        public = make_image(tx, name="public", owner="other", visibility=images.PUBLIC)
    with database.read() as tx:
        assert images.list_for(tx, project_id="project") == [public, mine]
        assert len(images.list_for(tx)) == 3
        assert images.list_for(tx, project_id="project", filters={"name": "theirs"}) == []
        assert images.list_for(tx, uuids=[mine.uuid, "nobody"]) == [mine]
        assert images.list_for(tx, uuids=[]) == []
        assert images.list_for(tx, project_id="project", after=public.uuid, limit=1) == [mine]


def test_an_image_is_filled_once(database: Database) -> None:
    with database.write() as tx:
        made = make_image(tx, status=images.QUEUED)
        saving = images.swap_status(tx, made.uuid, images.QUEUED, images.SAVING)
        assert saving is not None
        assert saving.status == images.SAVING
        assert images.swap_status(tx, made.uuid, images.QUEUED, images.SAVING) is None
        filled = images.swap_status(tx, made.uuid, images.SAVING, images.ACTIVE, {"size": 3 << 32})
        assert filled is not None
        assert filled.size == 3 << 32
        images.update(tx, filled, {"name": None})
        found = images.get(tx, made.uuid, lock=True)
    assert found is not None
    assert (found.name, found.status) == (None, images.ACTIVE)


def test_an_older_agent_reads_an_empty_list_of_tags(database: Database) -> None:
    """Images had tags. Agents may be upgraded later than the api, and their statements name that column."""
    with database.write() as tx:
        made = make_image(tx)
        query = sa.text("SELECT tags FROM images WHERE uuid = :uuid")
        assert tx.execute(query, {"uuid": made.uuid}).scalars().all() == ["[]"]


def test_a_host_keeps_its_uuid_and_what_the_operator_wants_of_it(database: Database) -> None:
    with database.write() as tx:
        made = hosts.report(tx, "h1", HOST)
        hosts.update(tx, made, {"disabled": True, "disabled_reason": "repair"})
        again = hosts.report(tx, "h1", {**HOST, "memory_mb": 4096})
        hosts.report(tx, "h0", HOST)
    assert (again.uuid, again.memory_mb, again.disabled, again.disabled_reason) == (made.uuid, 4096, True, "repair")
    with database.read() as tx:
        assert hosts.get(tx, made.uuid) == again
        assert hosts.find(tx, "h2") is None
        assert [host.hostname for host in hosts.list_all(tx)] == ["h0", "h1"]


def test_a_host_that_has_nothing_new_to_say_writes_nothing(database: Database) -> None:
    with database.write() as tx:
        made = hosts.report(tx, "h1", HOST)
    with database.read() as tx:  # a write would be refused here
        assert hosts.report(tx, "h1", HOST) == made


def test_what_an_instance_has_of_its_host_is_known_however_it_came(database: Database) -> None:
    with database.write() as tx:
        claiming, binding, none = (make_instance(tx).uuid for _ in range(3))
        gpu = "22222222-2222-2222-2222-222222222222"
        functions = ["0000:81:00.0", "0000:81:00.1"]
        burnedrows.insert(
            tx, gpu, "h1", functions[0], functions, managed=False, resource_class="CUSTOM_GPU", burned_at=utcnow()
        )
        burnedrows.claim(tx, gpu, claiming)
        slot = make_slot(tx, pci_address="0000:0a:00.0")
        holds = {"device_id": slot.device.id, "attach_handle_id": slot.handle_id, "instance_uuid": binding}
        arq = make_arq(tx, state=ARQState.BOUND, **holds)
        make_arq(tx, state=ARQState.BIND_FAILED, **holds)
    with database.read() as tx:
        found = instances.of_instances(tx, [claiming, binding, none])
        assert instances.of_instances(tx, []) == {}
    assert found == {
        claiming: [Hostdev(claiming, "0000:81:00.0", gpu, "CUSTOM_GPU", False, True, True, None)],
        binding: [
            Hostdev(binding, "0000:0a:00.0", slot.deployable.rp_uuid, "CUSTOM_NVME", True, False, False, arq.uuid)
        ],
    }


@pytest.mark.parametrize(("stored", "managed"), [({}, True), ({"managed": "no"}, False), ({"managed": "true"}, True)])
def test_a_mode_that_another_program_has_written_is_told_as_the_guest_gets_it(
    tmp_path: Path, stored: dict[str, str], managed: bool
) -> None:
    db = sqlite_database(tmp_path)
    with db.write() as tx:
        slot, instance = make_slot(tx), make_instance(tx).uuid
        info = json.dumps({"domain": "0000", "bus": "41", "device": "00", "function": "0", **stored})
        tx.execute(attach_handles.update().values(attach_info=info))
        holds = {"device_id": slot.device.id, "attach_handle_id": slot.handle_id, "instance_uuid": instance}
        make_arq(tx, state=ARQState.BOUND, **holds)
    with db.read() as tx:
        [hostdev] = instances.of_instances(tx, [instance])[instance]
    assert hostdev.managed is managed
    db.dispose()


def test_what_a_host_has_added_is_remembered_letter_by_letter_and_forgotten_again(database: Database) -> None:
    root, other = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
    licence = Addition(root, AdditionKind.INVENTORY, "CUSTOM_LICENCE")
    first = frozenset({licence, Addition(root, AdditionKind.TRAIT, "CUSTOM_LICENCE")})
    with database.write() as tx:
        pci.remember(tx, "h1", first)
        pci.remember(tx, "H1", frozenset({Addition(other, AdditionKind.INVENTORY, "CUSTOM_OTHER")}))
    with database.read() as tx:
        assert pci.of_host(tx, "h1") == first
        assert pci.added_classes(tx, root) == {"CUSTOM_LICENCE"}
    with pytest.raises(DBDuplicateEntry), database.write() as tx:
        pci.remember(tx, "h1", frozenset({licence}))
    with database.write() as tx:
        pci.forget(tx, "h1", frozenset({licence}))
        assert pci.of_host(tx, "h1") == first - {licence}
        assert pci.added_classes(tx, root) == frozenset()
        assert pci.added_classes(tx, other) == {"CUSTOM_OTHER"}


def test_the_most_that_the_api_lets_in_is_kept_whole(database: Database) -> None:
    """The longest texts of four bytes a letter, and 60,000 bytes of JSON."""
    much = {"key": "x" * 59_980}
    with database.write() as tx:
        flavor = make_flavor(
            tx, name="😀" * 255, flavorid="z" * 255, description="😀" * 4096, extra_specs=much, rxtx_factor=1.25
        )
        image = make_image(tx, name="😀" * 255, properties=much, owner="😀" * 255)
        instance = make_instance(
            tx,
            name="😀" * 255,
            description="😀" * 4096,
            flavor=flavor.snapshot,
            image=image.snapshot,
            metadata=much,
            rebuild={"image_uuid": image.uuid, "image": image.snapshot},
        )
    with database.read() as tx:
        assert flavors.find(tx, "😀" * 255) == flavor
        assert (flavor.extra_specs, flavor.description, flavor.rxtx_factor) == (much, "😀" * 4096, 1.25)
        assert images.list_for(tx, project_id="😀" * 255) == [image]
        found = instances.get(tx, instance.uuid)
        assert found == instance
    assert instance.rebuild == {"image_uuid": image.uuid, "image": image.snapshot}
    assert (instance.flavor, instance.metadata) == (flavor.snapshot, much)


def test_a_moment_is_kept_to_the_microsecond(database: Database) -> None:
    then = datetime(2026, 11, 28, 23, 59, 59, 999_999)
    with database.write() as tx:
        made = make_instance(tx, created_at=then, launched_at=then, fault_at=then)
    with database.read() as tx:
        assert instances.get(tx, made.uuid) == made
    assert (made.created_at, made.launched_at, made.fault_at) == (then, then, then)


def test_names_are_found_alike_on_every_engine(database: Database) -> None:
    with database.write() as tx:
        for name in ("web-1", "WEB-2", "db_1", "dbx1"):
            make_instance(tx, name=name)
        names = instances_table.c.name
        for condition, found in [
            (names.icontains("Web", autoescape=True), ["web-1", "WEB-2"]),
            (names.icontains("b_1", autoescape=True), ["db_1"]),
            (names.istartswith("DB", autoescape=True), ["db_1", "dbx1"]),
            (names.iendswith("-1", autoescape=True), ["web-1"]),
        ]:
            listed = instances.list_for(tx, conditions=[condition])
            assert [one.name for one in listed[::-1]] == found
