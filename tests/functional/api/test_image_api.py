"""Images: their data is whole or not there, their attributes are checked, and others' are nobody's."""

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import pytest
import requests
from api_world import World, new_uuid, said

from autoclave.api.image.store import ImageStore, TooLarge
from autoclave.db import images as image_rows

pytestmark = pytest.mark.matrix

MEMBER = "mia:blue:member"
OTHER = "otto:red:member"
PATCH = {"Content-Type": "application/openstack-images-v2.1-json-patch"}


def get(world: World, path: str = "", token: str | None = None) -> Any:
    return world.http.simulate_get(f"/image/v2/images{path}", headers={"X-Auth-Token": token} if token else {})


def post(world: World, token: str | None = None, **values: Any) -> Any:
    headers = {"X-Auth-Token": token} if token else {}
    return world.http.simulate_post("/image/v2/images", json=values, headers=headers)


def patch(world: World, image: str, *operations: dict[str, Any], token: str | None = None) -> Any:
    headers = {**PATCH, **({"X-Auth-Token": token} if token else {})}
    return world.http.simulate_patch(f"/image/v2/images/{image}", json=list(operations), headers=headers)


def status(world: World, image: str) -> str:
    return str(get(world, f"/{image}").json["status"])


def files(world: World) -> list[str]:
    directory = world.directory / "images"
    return sorted(file.name for file in directory.iterdir() if file.suffix != ".lock") if directory.exists() else []


def set_status(world: World, image: str, value: str) -> None:
    with world.db.write() as tx:
        tx.exec_driver_sql(f"UPDATE images SET status = '{value}' WHERE uuid = '{image}'")


# the data


def test_data_is_stored_whole_with_its_sums(world: World) -> None:
    data = os.urandom(3 << 20)
    image = world.add_image(data=data)
    shown = get(world, f"/{image}").json
    assert (shown["status"], shown["size"]) == ("active", len(data))
    assert (shown["checksum"], shown["os_hash_algo"]) == (hashlib.md5(data).hexdigest(), "sha512")
    assert shown["os_hash_value"] == hashlib.sha512(data).hexdigest()
    fetched = get(world, f"/{image}/file")
    assert (fetched.content, fetched.headers["content-type"]) == (data, "application/octet-stream")
    assert files(world) == [image]


def test_data_of_unsaid_length_is_stored_too(world: World) -> None:
    with world.served() as url:
        image = world.add_image(data=None)
        sent = requests.put(
            f"{url}/image/v2/images/{image}/file",
            data=iter([b"a" * 100_000, b"b"]),
            headers={"Content-Type": "application/octet-stream"},
            timeout=30,
        )
    assert sent.status_code == 204
    assert get(world, f"/{image}").json["size"] == 100_001


def test_an_image_without_data_has_none_to_fetch(world: World) -> None:
    image = world.add_image(data=None)
    assert get(world, f"/{image}/file").status_code == 204
    assert status(world, image) == "queued"


def test_data_is_sent_once(world: World) -> None:
    image = world.add_image(data=b"first")
    answer = world.send_data(image, b"second")
    assert answer.status_code == 409
    assert get(world, f"/{image}/file").content == b"first"


@pytest.fixture
def small(tmp_path: Path) -> Any:
    made = World(tmp_path, {("compute", "max_image_size_mb"): 1})
    yield made
    made.close()


def test_data_that_is_announced_too_large_is_413_before_it_is_read(small: World) -> None:
    image = small.add_image(data=None)
    answer = small.send_data(image, b"x" * ((1 << 20) + 1))
    assert answer.status_code == 413
    assert "1 MiB" in said(answer)
    assert (status(small, image), files(small)) == ("queued", [])
    assert small.send_data(image, b"x" * (1 << 20)).status_code == 204


def test_data_that_turns_out_too_large_is_413_and_nothing_of_it_stays(small: World) -> None:
    image = small.add_image(data=None)
    headers = {"Content-Type": "application/octet-stream", "Transfer-Encoding": "chunked"}
    answer = small.http.simulate_put(
        f"/image/v2/images/{image}/file", headers=headers, extras={"wsgi.input": io.BytesIO(b"x" * (2 << 20))}
    )
    assert answer.status_code == 413
    assert (status(small, image), files(small)) == ("queued", [])
    assert small.send_data(image, b"data").status_code == 204


def test_data_that_ends_early_is_400_and_can_be_sent_again(world: World) -> None:
    image = world.add_image(data=None)
    headers = {"Content-Type": "application/octet-stream", "Content-Length": "1000"}
    answer = world.http.simulate_put(
        f"/image/v2/images/{image}/file", headers=headers, extras={"wsgi.input": io.BytesIO(b"x" * 10)}
    )
    assert answer.status_code == 400
    assert "10 of 1000 bytes" in said(answer)
    assert (status(world, image), files(world)) == ("queued", [])
    assert world.send_data(image, b"data").status_code == 204


class BrokenStream(io.BytesIO):
    def read(self, size: int | None = -1, /) -> bytes:
        raise ConnectionResetError("the caller is gone")


def test_a_caller_who_goes_away_leaves_an_image_that_can_be_filled(world: World) -> None:
    image = world.add_image(data=None)
    headers = {"Content-Type": "application/octet-stream", "Transfer-Encoding": "chunked"}
    answer = world.http.simulate_put(
        f"/image/v2/images/{image}/file", headers=headers, extras={"wsgi.input": BrokenStream()}
    )
    assert answer.status_code == 400
    assert (status(world, image), files(world)) == ("queued", [])
    assert world.send_data(image, b"data").status_code == 204


@pytest.mark.parametrize("left", [[], ["part"], ["whole"]], ids=["nothing", "part", "whole"])
def test_a_service_that_died_while_data_arrived_leaves_an_image_that_can_be_filled(
    world: World, left: list[str]
) -> None:
    image = world.add_image(data=None)
    directory = world.directory / "images"
    directory.mkdir()
    if left:
        (directory / (f"{image}.part" if left == ["part"] else image)).write_bytes(b"what came before the end")
    set_status(world, image, image_rows.SAVING)
    assert get(world, f"/{image}/file").status_code == 204
    assert world.send_data(image, b"data").status_code == 204
    assert get(world, f"/{image}/file").content == b"data"
    assert files(world) == [image]


class Nested(io.BytesIO):
    """Data on its way, during which somebody else does something."""

    def __init__(self, meanwhile: Any) -> None:
        super().__init__()
        self._meanwhile = meanwhile
        self._chunks = [b"first", b""]

    def read(self, size: int | None = -1, /) -> bytes:
        if len(self._chunks) == 2:
            self._meanwhile()
        return self._chunks.pop(0)


def send_while(world: World, image: str, meanwhile: Any) -> Any:
    headers = {"Content-Type": "application/octet-stream", "Transfer-Encoding": "chunked"}
    return world.http.simulate_put(
        f"/image/v2/images/{image}/file", headers=headers, extras={"wsgi.input": Nested(meanwhile)}
    )


def test_of_two_who_send_data_at_once_the_first_is_heard(world: World) -> None:
    image, found = world.add_image(data=None), []
    first = send_while(world, image, lambda: found.append(world.send_data(image, b"second").status_code))
    assert (first.status_code, found) == (204, [409])
    assert get(world, f"/{image}/file").content == b"first"


def test_an_image_that_is_deleted_while_its_data_arrives_leaves_nothing(world: World) -> None:
    image = world.add_image(data=None)
    answer = send_while(world, image, lambda: world.http.simulate_delete(f"/image/v2/images/{image}"))
    assert answer.status_code in (404, 503)
    assert files(world) == []
    assert get(world, f"/{image}").status_code == 404


def test_files_that_a_dead_service_left_go_with_the_next_image(world: World) -> None:
    kept, gone = world.add_image(), world.add_image()
    stranger = new_uuid()
    for name in (stranger, f"{stranger}.part", f"{stranger}.lock"):
        (world.directory / "images" / name).write_bytes(b"x")
    assert world.http.simulate_delete(f"/image/v2/images/{gone}").status_code == 204
    assert sorted(file.name for file in (world.directory / "images").iterdir()) == [kept, f"{kept}.lock"]


def test_a_directory_that_cannot_be_written_is_503_and_the_image_waits(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    image = world.add_image(data=None)
    (world.directory / "images").write_text("this is no directory")
    answer = world.send_data(image, b"data")
    assert answer.status_code == 503
    assert any("images: File exists; images are stored below [agent] data_dir" in told for told in caplog.messages)
    assert "images" not in said(answer).replace("image's", "")
    assert status(world, image) == "queued"


def test_data_must_be_declared_as_such_and_the_formats_be_known(world: World) -> None:
    image = world.add_image(data=None)
    answer = world.http.simulate_put(f"/image/v2/images/{image}/file", body=b"x", headers={"Content-Type": "text/x"})
    assert answer.status_code == 415
    assert "application/octet-stream" in said(answer)
    bare = post(world, name="n").json["id"]
    answer = world.send_data(bare, b"x")
    assert answer.status_code == 400
    assert "disk_format and a container_format" in said(answer)


def test_a_file_is_only_visible_when_it_is_whole(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "images")
    with store.part("u") as file:
        store.receive(io.BytesIO(b"data"), file, 10)
        assert not store.path("u").exists()
        store.keep("u")
        assert store.path("u").read_bytes() == b"data"
    with pytest.raises(TooLarge), store.part("v") as file:
        store.receive(io.BytesIO(b"data"), file, 3)
    assert sorted(file.name for file in (tmp_path / "images").iterdir()) == ["u", "u.lock", "v.lock"]


# attributes and properties


def test_an_image_has_its_properties_beside_all_else(world: World) -> None:
    made = post(world, name="i", **{"trait:HW_X": "required", "os_type": "linux"}, tags=[], min_ram=64)
    assert made.status_code == 201
    assert (made.json["trait:HW_X"], made.json["os_type"], made.json["tags"]) == ("required", "linux", [])
    assert (made.json["visibility"], made.json["owner"], made.json["min_ram"]) == ("shared", "admin", 64)
    assert get(world, f"/{made.json['id']}").json == made.json


@pytest.mark.parametrize(
    ("values", "code", "named"),
    [
        ({"disk_format": "floppy"}, 400, "disk_format"),
        ({"visibility": "community"}, 400, "visibility"),
        ({"min_ram": -1}, 400, "min_ram"),
        ({"prop": 1}, 400, "prop"),
        ({"prop": "v" * 4097}, 400, "prop"),
        ({"id": "x"}, 400, "UUID"),
        ({"status": "active"}, 403, "status"),
        ({"size": 1}, 403, "size"),
        ({"os_hidden": True}, 403, "os_hidden"),
        ({"": "x"}, 400, "1 to 255"),
        ({"tags": ["a"]}, 400, "images have no tags"),
        ({f"p{n}": "v" * 4000 for n in range(20)}, 400, "bytes"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_image_that_cannot_be_is_refused_and_the_reason_is_named(
    world: World, values: dict[str, Any], code: int, named: str
) -> None:
    answer = world.http.simulate_post("/image/v2/images", json=values)
    assert answer.status_code == code
    assert named in said(answer)
    assert get(world).json["images"] == []


def test_an_id_that_is_taken_is_409(world: World) -> None:
    uuid = world.add_image()
    assert post(world, id=uuid.upper()).status_code == 409


def test_a_patch_is_carried_out_as_a_whole_or_not_at_all(world: World) -> None:
    image = world.add_image("i", **{"a/b": "1"})
    changed = patch(
        world,
        image,
        {"op": "add", "path": "/trait:HW_Y", "value": "required"},
        {"op": "remove", "path": "/a~1b"},
        {"op": "replace", "path": "/name", "value": None},
    )
    assert changed.status_code == 200
    assert (changed.json["trait:HW_Y"], "a/b" in changed.json, changed.json["name"]) == ("required", False, None)
    answer = patch(
        world,
        image,
        {"op": "add", "path": "/os_type", "value": "linux"},
        {"op": "remove", "path": "/nobody"},
    )
    assert answer.status_code == 409
    assert "nobody" in said(answer)
    assert "os_type" not in get(world, f"/{image}").json


@pytest.mark.parametrize(
    ("operation", "code", "named"),
    [
        ({"op": "replace", "path": "/nobody", "value": "x"}, 409, "nobody"),
        ({"op": "remove", "path": "/name"}, 403, "name"),
        ({"op": "add", "path": "/status", "value": "active"}, 403, "status"),
        ({"op": "replace", "path": "/os_hidden", "value": True}, 403, "os_hidden"),
        ({"op": "replace", "path": "/disk_format", "value": "qcow2"}, 403, "disk_format"),
        ({"op": "add", "path": "/x"}, 400, "value"),
        ({"op": "add", "path": "/x", "value": 1}, 400, "/x"),
        ({"op": "replace", "path": "/tags", "value": ["a"]}, 400, "images have no tags"),
        ({"op": "add", "path": "/tags", "value": []}, 400, "images have no tags"),
        ({"op": "remove", "path": "/tags"}, 409, "tags"),
        ({"op": "move", "path": "/x", "from": "/y"}, 400, "op"),
        ({"op": "add", "path": "x", "value": "1"}, 400, "path"),
        ({"op": "add", "path": "/a/b", "value": "1"}, 400, "path"),
    ],
    ids=str,
)
def test_a_patch_that_cannot_be_is_refused(world: World, operation: dict[str, Any], code: int, named: str) -> None:
    answer = patch(world, world.add_image(), operation)
    assert answer.status_code == code
    assert named in said(answer)


def test_a_protected_image_stays_until_it_is_not(world: World) -> None:
    image = world.add_image(protected=True)
    assert world.http.simulate_delete(f"/image/v2/images/{image}").status_code == 403
    patch(world, image, {"op": "replace", "path": "/protected", "value": False})
    assert world.http.simulate_delete(f"/image/v2/images/{image}").status_code == 204


def test_another_projects_images_are_nobodys_and_public_ones_are_not_for_change(world: World) -> None:
    mine = post(world, MEMBER, name="mine", disk_format="raw", container_format="bare").json["id"]
    for path in (f"/{mine}", f"/{mine}/file"):
        assert get(world, path, OTHER).status_code == 404
    rename = {"op": "replace", "path": "/name", "value": "n"}
    assert patch(world, mine, rename, token=OTHER).status_code == 404
    assert world.send_data(mine, b"x", token=OTHER).status_code == 404
    assert get(world, "", OTHER).json["images"] == []
    assert get(world, f"?marker={mine}", OTHER).status_code == 400
    public = world.add_image("public")
    assert [one["id"] for one in get(world, "", MEMBER).json["images"]] == [public, mine]
    assert patch(world, public, rename, token=MEMBER).status_code == 403
    deleted = world.http.simulate_delete(f"/image/v2/images/{public}", headers={"X-Auth-Token": MEMBER})
    assert deleted.status_code == 403


def test_only_an_administrator_publishes_an_image_or_gives_it_away(world: World) -> None:
    assert post(world, MEMBER, visibility="public").status_code == 403
    assert post(world, MEMBER, owner="red").status_code == 403
    mine = post(world, MEMBER, owner="blue").json["id"]
    assert patch(world, mine, {"op": "add", "path": "/visibility", "value": "public"}, token=MEMBER).status_code == 403
    assert patch(world, mine, {"op": "replace", "path": "/owner", "value": "red"}).json["owner"] == "red"
    assert get(world, f"/{mine}", MEMBER).status_code == 404


def test_a_list_has_what_was_asked_for(world: World) -> None:
    a = world.add_image("a")
    b = world.add_image("b", data=None, disk_format="qcow2", protected=True)
    for query, found in [
        ("?name=a", [a]),
        ("?status=queued", [b]),
        ("?disk_format=qcow2", [b]),
        ("?protected=true", [b]),
        ("?protected=False", [a]),
        ("?visibility=private", []),
        ("?visibility=all", [b, a]),
        ("?visibility=community", []),
        ("?status=deactivated", []),
        ("?member_status=all", [b, a]),
        ("?owner=admin", [b, a]),
        (f"?id={a}", [a]),
        (f"?id=in:{a},{b},{new_uuid()}", [b, a]),
        ("?id=in:x", []),
        ("?os_hidden=true", []),
        ("?limit=1", [b]),
        (f"?marker={b}", [a]),
    ]:
        assert [one["id"] for one in get(world, query).json["images"]] == found, query
    for query in ("?nam=a", "?status=gone", "?tag=x", "?sort=name:asc", "?sort_key=name", "?sort_dir=asc"):
        answer = get(world, query)
        assert (answer.status_code, query[1:].partition("=")[0] in said(answer)) == (400, True), query


def test_a_full_page_says_where_the_next_one_is(world: World) -> None:
    a, b = world.add_image("a&b"), world.add_image("a&b")
    page = get(world, "?limit=1&name=a%26b").json
    assert [one["id"] for one in page["images"]] == [b]
    assert page["next"] == f"/v2/images?limit=1&name=a%26b&marker={b}"
    page = world.http.simulate_get(f"/image{page['next']}").json
    assert [one["id"] for one in page["images"]] == [a]
    assert "next" not in get(world, "?limit=3").json
    assert "next" not in get(world).json


def test_no_image_is_what_is_answered_to_who_wants_none(world: World) -> None:
    world.add_image("a")
    answer = get(world, "?limit=0").json
    assert (answer["images"], "next" in answer) == ([], False)
