"""One who listens to notifications, as an operator's own program does."""

import queue
from typing import Any

import oslo_messaging

from autoclave.conf import new_config
from autoclave.rpc.messaging import own_configuration


class Listener:
    """:attr heard: publisher, event and payload of each, in order; an event of the priority of a failure ends in ``!``.

    :param url: of the broker.
    """

    def __init__(self, url: str, topic: str) -> None:
        self.heard: queue.Queue[tuple[str, str, dict[str, Any]]] = queue.Queue()
        conf = own_configuration(new_config((), {(None, "transport_url"): url}))
        transport = oslo_messaging.get_notification_transport(conf, url=url)
        self._server = oslo_messaging.get_notification_listener(
            transport, [oslo_messaging.Target(topic=topic)], [self], executor="threading"
        )
        self._server.start()

    def info(self, _context: Any, publisher_id: str, event_type: str, payload: dict[str, Any], _metadata: Any) -> None:
        self.heard.put((publisher_id, event_type, payload))

    def error(self, _context: Any, publisher_id: str, event_type: str, payload: dict[str, Any], _metadata: Any) -> None:
        self.heard.put((publisher_id, f"{event_type}!", payload))

    def stop(self) -> None:
        self._server.stop()
        self._server.wait()
