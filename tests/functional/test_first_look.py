"""A service that starts tells what is wrong around it, before somebody needs what does not work."""

import logging
import threading
from datetime import timedelta

import pytest

from autoclave.conf import new_config
from autoclave.db import engine
from autoclave.db.columns import utcnow
from autoclave.db.engine import Database
from autoclave.placement.client import PlacementClient
from autoclave.placement.transport import http_adapter
from autoclave.services.service import look_at_clock, look_at_placement


def test_a_clock_that_is_the_servers_is_no_news(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    look_at_clock(database)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("seconds", "said"), [(300, "300 s ahead of that of"), (-300, "300 s behind that of")], ids=["ahead", "behind"]
)
def test_a_clock_that_differs_from_the_servers_is_told(
    row_locking_database: Database,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    seconds: int,
    said: str,
) -> None:
    monkeypatch.setattr(engine, "utcnow", lambda: utcnow() + timedelta(seconds=seconds))
    look_at_clock(row_locking_database)
    [told] = caplog.messages
    assert said in told
    assert "NTP" in told


def test_a_placement_that_is_not_there_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    conf = new_config(
        (), {("placement", "endpoint_override"): "http://127.0.0.1:1", ("placement", "auth_type"): "none"}
    )
    look_at_placement(PlacementClient(http_adapter(conf)))
    for thread in threading.enumerate():
        if thread.name == "first look at Placement":
            thread.join(60)
    [told] = caplog.messages
    assert "[placement] endpoint_override" in told
