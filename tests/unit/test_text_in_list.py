"""A text is found in a list that is kept as JSON, and nowhere else, by the database itself."""

import json

import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from autoclave.db.columns import lists

ENGINE = sa.create_engine("sqlite://")
TEXT = st.text(alphabet='", []\\xn\n', max_size=4)


@settings(max_examples=500)
@given(texts=st.lists(TEXT, max_size=4), wanted=TEXT | st.just(", "))
def test_a_text_is_found_where_it_is_and_nowhere_else(texts: list[str], wanted: str) -> None:
    written = sa.literal(json.dumps(texts), sa.Text)
    with ENGINE.connect() as connection:
        assert bool(connection.scalar(sa.select(lists(written, wanted)))) == (wanted in texts)


@settings(max_examples=500)
@given(texts=st.lists(st.sampled_from([", ", "a", "a ", '"', ",", "[", ""]) | TEXT, max_size=5))
def test_a_text_that_stands_between_all_others_is_found_too(texts: list[str]) -> None:
    written = sa.literal(json.dumps(texts), sa.Text)
    with ENGINE.connect() as connection:
        assert bool(connection.scalar(sa.select(lists(written, ", ")))) == (", " in texts)
