"""Notify listeners of the events of instances: the port, and its transports.

Notifications have no reply and are never repeated. A listener that must not miss an event, such as a cleaner of burned
devices, also has to poll. So an unreachable broker never blocks the build or deletion of an instance.
"""

import queue
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import oslo_messaging
from oslo_config import cfg
from oslo_log import log as logging

from autoclave.rpc import messaging
from autoclave.rpc.messaging import RETRIES, own_configuration

LOG = logging.getLogger(__name__)

WAITING = 1000
"""The most notifications that wait for a slow or unreachable broker; others are dropped and logged."""

PATIENCE = 5.0
"""Seconds that a stopping service waits for the broker to take the waiting notifications."""


class Notification(NamedTuple):
    """Hold one notification.

    :param publisher: ``autoclave-agent:<host>``.
    :param event_type: such as ``instance.delete.end``.
    """

    publisher: str
    event_type: str
    payload: Mapping[str, Any]
    error: bool = False


class Notifications(Protocol):
    """Send notifications. :meth:`emit` returns at once and raises no transport errors."""

    def emit(self, notification: Notification) -> None:
        """Enqueue a notification; its payload consists of JSON values."""

    def close(self) -> None:
        """Send the waiting notifications, as far as the broker takes them, and disconnect."""


class NoNotifications:
    """Drop all notifications."""

    def emit(self, notification: Notification) -> None:
        LOG.debug("Notification %s dropped: notifications are not configured", notification.event_type)

    def close(self) -> None:
        """Do nothing: no notification waits."""


class MessagingNotifications:
    """Send versioned notifications over RabbitMQ, with ``priority`` info or error on each topic.

    :raises InvalidConfiguration: ``[DEFAULT] transport_url`` cannot be used.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        own = own_configuration(conf)
        try:
            self._transport = oslo_messaging.get_notification_transport(own, url=conf.transport_url)
        except (oslo_messaging.InvalidTransportURL, oslo_messaging.DriverLoadFailure, ValueError) as error:
            raise messaging.unusable(error) from error
        topics = list(conf.notifications.versioned_notifications_topics)
        self._notifier = oslo_messaging.Notifier(self._transport, driver="messagingv2", topics=topics, retry=RETRIES)
        self._waiting: queue.Queue[Notification | None] = queue.Queue(WAITING)
        self._given_up = threading.Event()
        # One thread keeps the order of events. It is a daemon, so that a process can end while the broker is
        # unreachable.
        self._sender = threading.Thread(target=self._send_all, name="notifications", daemon=True)
        self._sender.start()

    def emit(self, notification: Notification) -> None:
        try:
            self._waiting.put_nowait(notification)
        except queue.Full:
            LOG.error(
                "Notification %s dropped: %d are waiting, the broker does not accept them", notification[:2], WAITING
            )

    def close(self) -> None:
        deadline = time.monotonic() + PATIENCE
        try:
            self._waiting.put(None, timeout=PATIENCE)
            self._sender.join(max(deadline - time.monotonic(), 0))
        except queue.Full:
            LOG.debug("The broker accepts no notifications")
        if self._sender.is_alive():
            self._given_up.set()
            LOG.error("%d notifications dropped: the broker did not accept them", self._waiting.qsize())
            return
        self._transport.cleanup()

    def _send_all(self) -> None:
        while (told := self._waiting.get()) is not None and not self._given_up.is_set():
            notifier = self._notifier.prepare(publisher_id=told.publisher)
            send = notifier.error if told.error else notifier.info
            # oslo.messaging logs notifications that the broker refuses
            send({}, told.event_type, dict(told.payload))


def notifications_of(conf: cfg.ConfigOpts) -> Notifications:
    """Return the transport of *conf*.

    :raises InvalidConfiguration: it names a broker by a URL that cannot be used.
    """
    if not conf.transport_url or not conf.notifications.versioned_notifications_topics:
        return NoNotifications()
    return MessagingNotifications(conf)
