"""Whoever listens learns what became of an instance; whoever does not listen holds nobody up."""

import threading
import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from listener import Listener

from autoclave.conf import new_config
from autoclave.exceptions import InvalidConfiguration
from autoclave.objects.instance_action import GivenFunction, instance_action
from autoclave.rpc import notifications
from autoclave.rpc.notifications import WAITING, MessagingNotifications, NoNotifications, Notification, notifications_of

pytestmark = pytest.mark.integration

BURNED = GivenFunction("0000:81:00.0", "3f0c0c3e-0f0e-4b51-9d0a-000000000001", "CUSTOM_GPU", True, True)


def conf_of(url: str, topic: str = "versioned_notifications") -> Any:
    overrides: dict[tuple[str | None, str], Any] = {
        (None, "transport_url"): url,
        ("notifications", "versioned_notifications_topics"): [topic],
    }
    return new_config((), overrides)


def deleted(number: int = 0) -> Notification:
    payload = instance_action(
        uuid=f"3f0c0c3e-0f0e-4b51-9d0a-{number:012}",
        display_name="vm <1>",
        project_id="p",
        user_id="u",
        host="h_1",
        state="deleted",
        task_state=None,
        flavor={"name": "f", "extra_specs": {"resources:CUSTOM_GPU": "1"}},
        image_uuid="",
        created_at=datetime(2026, 11, 28, 10, 0),
        launched_at=None,
        terminated_at=datetime(2026, 11, 28, 11, 0),
        pci_functions=[BURNED],
    )
    return Notification("autoclave-agent:h_1", "instance.delete.end", payload)


@pytest.fixture
def topic() -> str:
    return f"autoclave-test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def listener(rabbitmq_vhost_url: str, topic: str) -> Iterator[Listener]:
    found = Listener(rabbitmq_vhost_url, topic)
    yield found
    found.stop()


def test_a_listener_learns_which_functions_an_instance_had_and_by_which_providers(
    rabbitmq_vhost_url: str, topic: str, listener: Listener
) -> None:
    told = notifications_of(conf_of(rabbitmq_vhost_url, topic))
    told.emit(deleted())
    publisher, event, payload = listener.heard.get(timeout=60)
    assert (publisher, event) == ("autoclave-agent:h_1", "instance.delete.end")
    data = payload["nova_object.data"]
    assert (data["host"], data["terminated_at"]) == ("h_1", "2026-11-28T11:00:00Z")
    [device] = data["pci_devices"]
    assert device["nova_object.data"] == {
        "address": "0000:81:00.0",
        "resource_provider_uuid": BURNED.resource_provider_uuid,
        "resource_class": "CUSTOM_GPU",
        "one_time_use": True,
        "burned": True,
    }
    told.close()


def test_they_arrive_in_order_and_none_is_lost_when_the_service_stops(
    rabbitmq_vhost_url: str, topic: str, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "PATIENCE", 60.0)  # on a busy machine the broker may take its time
    told = notifications_of(conf_of(rabbitmq_vhost_url, topic))
    for number in range(20):
        told.emit(deleted(number))
    told.close()
    heard = [listener.heard.get(timeout=60)[2]["nova_object.data"]["uuid"] for _ in range(20)]
    assert heard == [f"3f0c0c3e-0f0e-4b51-9d0a-{number:012}" for number in range(20)]


def test_a_failure_has_the_priority_of_one(rabbitmq_vhost_url: str, topic: str, listener: Listener) -> None:
    told = notifications_of(conf_of(rabbitmq_vhost_url, topic))
    told.emit(deleted()._replace(event_type="instance.create.error", error=True))
    assert listener.heard.get(timeout=60)[1] == "instance.create.error!"
    told.close()


def test_a_broker_that_is_away_holds_nobody_up_and_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    others = set(threading.enumerate())
    told = MessagingNotifications(conf_of("rabbit://guest:guest@127.0.0.1:1/"))
    began = time.monotonic()
    for number in range(WAITING + 50):  # meanwhile a few may have been given up, each after some seconds
        told.emit(deleted(number))
    told.close()
    assert time.monotonic() - began < notifications.PATIENCE + 30
    assert f"instance.delete.end') dropped: {WAITING} are waiting" in caplog.text
    assert "notifications dropped: the broker did not accept them" in caplog.text
    ended = time.monotonic() + 60
    while any(thread.name == "notifications" for thread in set(threading.enumerate()) - others):
        assert time.monotonic() < ended, "the rest is still being tried"
        time.sleep(0.1)


def test_without_a_broker_or_a_topic_nobody_is_told() -> None:
    assert isinstance(notifications_of(new_config()), NoNotifications)
    unheard = conf_of("rabbit://guest:guest@127.0.0.1/")
    unheard.set_override("versioned_notifications_topics", [], group="notifications")
    assert isinstance(notifications_of(unheard), NoNotifications)


def test_a_url_that_cannot_be_used_names_the_option() -> None:
    with pytest.raises(InvalidConfiguration, match=r"\[DEFAULT\] transport_url: cannot be used.*use rabbit://"):
        notifications_of(conf_of("smoke://signal"))
