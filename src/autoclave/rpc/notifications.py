"""Telling whoever listens what became of an instance: the port, and its transports.

Nobody answers a notification, and none is repeated: who must not miss anything, such as what cleans burned devices,
polls as well. So a broker that is away never keeps an instance from being built or deleted.
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
"""Notifications that may wait for a broker that is slow or away; what comes beyond that is dropped, and logged."""

PATIENCE = 5.0
"""Seconds that a service which stops gives the broker to take what waits."""


class Notification(NamedTuple):
    """What listeners are told.

    :param publisher: ``autoclave-agent:<host>``.
    :param event_type: such as ``instance.delete.end``.
    """

    publisher: str
    event_type: str
    payload: Mapping[str, Any]
    error: bool = False


class Notifications(Protocol):
    """Tells others. :meth:`emit` returns at once and raises nothing of the world's faults."""

    def emit(self, notification: Notification) -> None:
        """Hand it over for sending; its payload is JSON values."""

    def close(self) -> None:
        """Send what waits, as far as the broker takes it, and let go."""


class NoNotifications:
    """There is nobody to tell."""

    def emit(self, notification: Notification) -> None:
        LOG.debug("%s is told to nobody", notification.event_type)

    def close(self) -> None:
        """Nothing is waiting."""


class MessagingNotifications:
    """Over RabbitMQ, as versioned notifications are: ``priority`` info or error on each topic.

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
        # One thread, so that they arrive in the order in which things happened; a process that ends does not wait for
        # a broker that is away.
        self._sender = threading.Thread(target=self._send_all, name="notifications", daemon=True)
        self._sender.start()

    def emit(self, notification: Notification) -> None:
        try:
            self._waiting.put_nowait(notification)
        except queue.Full:
            LOG.error("%s was not sent: %d wait already, the broker does not take them", notification[:2], WAITING)

    def close(self) -> None:
        deadline = time.monotonic() + PATIENCE
        try:
            self._waiting.put(None, timeout=PATIENCE)
            self._sender.join(max(deadline - time.monotonic(), 0))
        except queue.Full:
            LOG.debug("the broker takes nothing")
        if self._sender.is_alive():
            self._given_up.set()
            LOG.error("%d notifications were not sent: the broker did not take them", self._waiting.qsize())
            return
        self._transport.cleanup()

    def _send_all(self) -> None:
        while (told := self._waiting.get()) is not None and not self._given_up.is_set():
            notifier = self._notifier.prepare(publisher_id=told.publisher)
            send = notifier.error if told.error else notifier.info
            # what the broker does not take, oslo.messaging logs
            send({}, told.event_type, dict(told.payload))


def notifications_of(conf: cfg.ConfigOpts) -> Notifications:
    """The transport that *conf* asks for.

    :raises InvalidConfiguration: it names a broker by a URL that cannot be used.
    """
    if not conf.transport_url or not conf.notifications.versioned_notifications_topics:
        return NoNotifications()
    return MessagingNotifications(conf)
