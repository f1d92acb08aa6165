"""Device profiles are found by their exact names and stay while they are used, on SQLite, PostgreSQL and MariaDB."""

import pytest
from oslo_db.exception import DBDuplicateEntry, DBReferenceError

from autoclave.db import profiles
from autoclave.db.engine import Database
from dbfixtures import make_arq, make_profile


def test_profiles_are_found_by_uuid_and_by_the_exact_name(database: Database) -> None:
    with database.write() as tx:
        lower, upper = make_profile(tx, "gold"), make_profile(tx, "GOLD")
    with database.read() as tx:
        assert profiles.find(tx, uuid=lower.uuid) == lower
        assert profiles.find(tx, name="gold") == lower
        assert profiles.find(tx, name="GOLD") == upper
        assert profiles.find(tx, name="Gold") is None
        assert profiles.find(tx, uuid="nobody") is None
    assert lower.groups == [{"resources:CUSTOM_NVME": "1"}]


def test_a_profile_keeps_every_character_of_its_text(database: Database) -> None:
    text = "größe 🧪 \\ ' \" %s :name"
    with database.write() as tx:
        profiles.insert(tx, {"uuid": "u", "name": text, "profile_json": "{}", "description": text})
        found = profiles.find(tx, name=text)
    assert found is not None
    assert found.description == text


def test_profiles_are_listed_by_pages_and_by_names(database: Database) -> None:
    with database.write() as tx:
        made = [make_profile(tx, name) for name in ("c", "a", "b")]
    with database.read() as tx:
        assert profiles.list_all(tx) == made
        assert profiles.list_all(tx, limit=1) == made[:1]
        assert profiles.list_all(tx, after=made[0].uuid) == made[1:]
        assert profiles.list_all(tx, names=["b", "c", "nobody"]) == [made[0], made[2]]
        assert profiles.list_all(tx, names=[]) == []


@pytest.mark.parametrize("taken", ["uuid", "name"])
def test_a_profile_whose_name_or_uuid_is_taken_is_a_duplicate(database: Database, taken: str) -> None:
    with database.write() as tx:
        made = make_profile(tx)
    row = {"uuid": "u", "name": "n", "profile_json": "{}", taken: getattr(made, taken)}
    with pytest.raises(DBDuplicateEntry), database.write() as tx:
        profiles.insert(tx, row)


def test_a_profile_that_a_request_names_is_in_use_and_stays(database: Database) -> None:
    with database.write() as tx:
        used, unused = make_profile(tx), make_profile(tx, "unused")
        make_arq(tx)
        assert profiles.in_use(tx, used)
        assert not profiles.in_use(tx, unused)
        profiles.delete(tx, unused)
    with pytest.raises(DBReferenceError), database.write() as tx:
        profiles.delete(tx, used)
    with database.read() as tx:
        assert profiles.list_all(tx) == [used]
