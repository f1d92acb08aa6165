"""Metadata and tags of servers."""

import pytest
from api_world import World, said


def test_metadata_is_added_replaced_and_deleted_one_by_one(ready: World) -> None:
    uuid = ready.add_server(metadata={"a": "1"})
    path = f"/servers/{uuid}/metadata"
    assert ready.compute("POST", path, {"metadata": {"b": "2"}}).json == {"metadata": {"a": "1", "b": "2"}}
    assert ready.compute("PUT", f"{path}/b", {"meta": {"b": "3"}}).json == {"meta": {"b": "3"}}
    assert ready.compute("GET", f"{path}/b").json == {"meta": {"b": "3"}}
    assert ready.compute("PUT", f"{path}/b", {"meta": {"c": "3"}}).status_code == 400
    assert ready.compute("DELETE", f"{path}/a").status_code == 204
    assert ready.compute("DELETE", f"{path}/a").status_code == 404
    assert ready.compute("GET", path).json == {"metadata": {"b": "3"}}
    assert ready.compute("PUT", path, {"metadata": {}}).json == {"metadata": {}}
    assert ready.compute("DELETE", f"{path}/b").status_code == 404
    too_many = {f"k{number}": "v" for number in range(129)}
    assert ready.compute("PUT", path, {"metadata": too_many}).status_code == 400


def test_tags_are_given_replaced_taken_and_found(ready: World) -> None:
    flavor, image = ready.add_flavor(), ready.add_image()
    a = ready.add_server("a", flavorRef=flavor, imageRef=image, tags=["x"])
    b = ready.add_server("b", flavorRef=flavor, imageRef=image)
    assert ready.compute("PUT", f"/servers/{b}/tags", {"tags": ["x", "ü"]}).json == {"tags": ["x", "ü"]}
    made = ready.compute("PUT", f"/servers/{a}/tags/z 1")
    assert (made.status_code, made.headers["location"].endswith(f"/servers/{a}/tags/z%201")) == (201, True)
    assert ready.compute("PUT", f"/servers/{a}/tags/z 1").status_code == 204
    assert ready.compute("GET", f"/servers/{a}/tags").json == {"tags": ["x", "z 1"]}
    for query, found in [
        ("tags=x", "ba"),
        ("tags=x,ü", "b"),
        ("tags=X", ""),
        ("tags-any=ü,z 1", "ba"),
        ("not-tags=x,ü", "a"),
        ("not-tags-any=ü", "a"),
    ]:
        names = [one["name"] for one in ready.compute("GET", f"/servers?{query}").json["servers"]]
        assert "".join(names) == found, query
    assert [ready.compute("GET", f"/servers/{a}/tags/{tag}").status_code for tag in ("x", "y")] == [204, 404]
    assert [ready.compute("DELETE", f"/servers/{a}/tags/x").status_code for _ in range(2)] == [204, 404]
    assert ready.compute("DELETE", f"/servers/{b}/tags").status_code == 204
    assert ready.compute("GET", f"/servers/{b}").json["server"]["tags"] == []


@pytest.mark.parametrize("option", ["tags", "tags-any", "not-tags", "not-tags-any"])
def test_a_list_is_not_searched_by_more_tags_than_a_server_may_have(ready: World, option: str) -> None:
    """SQLite takes no more than a thousand of them, and each costs time."""
    fault = ready.compute("GET", f"/servers?{option}={','.join(f't{number}' for number in range(1500))}")
    assert fault.status_code == 400
    assert f'The argument "{option}" names 1500 tags; 50 is the most.' in fault.json["badRequest"]["message"]
    assert ready.compute("GET", f"/servers?{option}={','.join(['t'] * 1500)}").status_code == 200


def test_tags_that_cannot_be_are_400(ready: World) -> None:
    server = ready.add_server(tags=[f"t{number}" for number in range(50)])
    assert ready.compute("PUT", f"/servers/{server}/tags/t7").status_code == 204
    for path, body, said_of_it in [
        ("tags/a,b", None, "a comma"),
        (f"tags/{'t' * 61}", None, "1 to 60"),
        ("tags/one more", None, "50 is the most"),
        ("tags", {"tags": ["t", "t"]}, "different"),
    ]:
        answer = ready.compute("PUT", f"/servers/{server}/{path}", body)
        assert (answer.status_code, said_of_it in said(answer)) == (400, True), answer.text
