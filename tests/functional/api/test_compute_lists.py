"""Lists of servers: what may be asked of them, and what they cost."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from api_world import HOST, World, new_uuid, said
from server_requests import MEMBER, act


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(Path(tmp_path_factory.mktemp("three")))
    made.add_host()
    flavor, image = made.add_flavor(), made.add_image()
    for name in ("web-1", "WEB-2", "db_1"):
        made.add_server(name, flavorRef=flavor, imageRef=image)
    made.add_server("theirs", flavorRef=flavor, imageRef=image, token=MEMBER)
    stopped = made.compute("GET", "/servers?name=db_1").json["servers"][0]["id"]
    act(made, stopped, "os-stop")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ["db_1", "WEB-2", "web-1"]),
        ("deleted=False", ["db_1", "WEB-2", "web-1"]),
        ("deleted=True", []),
        ("all_tenants=True", ["theirs", "db_1", "WEB-2", "web-1"]),
        ("all_tenants=1&project_id=blue", ["theirs"]),
        ("name=web", ["WEB-2", "web-1"]),
        ("name=^web-1$", ["web-1"]),
        ("name=^1", []),
        ("name=1$", ["db_1", "web-1"]),
        ("name=%25", []),
        ("name=b_1", ["db_1"]),
        ("name=.*", []),
        ("status=ACTIVE", ["WEB-2", "web-1"]),
        ("status=shutoff", ["db_1"]),
        ("status=SUSPENDED", []),
        (f"host={HOST}", ["db_1", "WEB-2", "web-1"]),
        ("host=other", []),
        pytest.param(f"uuid={new_uuid()}", [], id="another uuid"),
        ("limit=1", ["db_1"]),
        ("limit=0", ["db_1", "WEB-2", "web-1"]),
    ],
)
def test_a_list_has_what_was_asked_for(three: World, query: str, names: list[str]) -> None:
    for path in ("/servers", "/servers/detail"):
        found = three.compute("GET", f"{path}?{query}").json["servers"]
        assert [one["name"] for one in found] == names


def test_a_full_page_says_where_the_next_one_is(three: World) -> None:
    for path in ("/servers", "/servers/detail"):
        page = three.compute("GET", f"{path}?name=WEB&limit=1").json
        [link] = page["servers_links"]
        assert ([one["name"] for one in page["servers"]], link["rel"]) == (["WEB-2"], "next")
        root, _, following = link["href"].partition("/compute/v2.1")
        assert root.startswith("http://")
        assert [one["name"] for one in three.compute("GET", following).json["servers"]] == ["web-1"]
        assert set(three.compute("GET", f"{path}?limit=4").json) == {"servers"}


@pytest.mark.parametrize(
    "query",
    ["nam=x", "uuid=x", "deleted=maybe", "limit=-1", "tags=x", "flavor=f1", "changes-since=2020", "sort_key=uuid"],
)
def test_a_question_that_is_not_understood_is_400_rather_than_everything(three: World, query: str) -> None:
    answer = three.compute("GET", f"/servers/detail?{query}")
    assert answer.status_code == 400
    assert query.partition("=")[0] in said(answer)


def test_an_unknown_filter_is_refused_with_the_possible_ones(three: World) -> None:
    """Clients know filters of Nova that are not served here."""
    possible = "all_tenants, deleted, host, limit, marker, name, project_id, status, uuid"
    answer = three.compute("GET", "/servers?vm_state=active")
    assert (answer.status_code, said(answer)) == (400, f'Unknown argument: "vm_state". Possible: {possible}.')


@pytest.mark.parametrize("name", ["a" * 258, "%25" * 50001], ids=["longer than a name", "longer than SQLite looks for"])
def test_a_name_that_no_server_can_have_is_not_looked_for(three: World, name: str) -> None:
    answer = three.compute("GET", f"/servers?name={name}")
    assert answer.status_code == 400
    assert "at most 257 characters" in answer.json["badRequest"]["message"]
    assert three.compute("GET", f"/servers?name=^{'a' * 255}$").json["servers"] == []


def test_a_list_in_detail_costs_the_same_for_one_server_and_for_many(three: World) -> None:
    statements: list[str] = []

    def count(query: str) -> int:
        statements.clear()
        three.compute("GET", f"/servers/detail?all_tenants=True&{query}")
        return len(statements)

    sa.event.listen(three.db._reader, "before_cursor_execute", lambda *arguments: statements.append(str(arguments[2])))
    assert count("name=^web-1$") == count("limit=100") > 0
