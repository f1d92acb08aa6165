"""Metadata of servers."""

from api_world import World


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
