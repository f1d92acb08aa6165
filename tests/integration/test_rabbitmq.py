"""RPC over RabbitMQ when the broker, or a service, is not as one would wish."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import kombu
import pytest

from autoclave.conf import new_config
from autoclave.exceptions import RPCTimeout, RPCUnavailable
from autoclave.objects.base import RequestContext
from autoclave.rpc.messaging import MessagingTransport
from freeport import free_port

pytestmark = pytest.mark.integration

TOO_LONG = 60
"""Seconds after which a call counts as hanging for ever."""


class Endpoint:
    def __init__(self) -> None:
        self.go_on = threading.Event()

    def answer(self, context: RequestContext) -> str:
        return "here"

    def dawdle(self, context: RequestContext) -> None:
        self.go_on.wait(TOO_LONG)


class Relay:
    """A door to the broker that can be shut, as a broken network or a stopped broker would."""

    def __init__(self, host: str, port: int) -> None:
        self._broker = (host, port)
        self._listener: socket.socket | None = None
        self._accepting: threading.Thread | None = None
        self._open: list[socket.socket] = []
        self.port = free_port()
        self.let_through()

    def let_through(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._accepting = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
        self._accepting.start()

    def shut(self) -> None:
        assert self._listener is not None
        assert self._accepting is not None
        # close() alone would let the thread in accept() take one more.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()  # or what it is letting through would stay open
        while self._open:
            self._close(self._open.pop())

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            broker = socket.create_connection(self._broker)
            self._open += [client, broker]
            for source, sink in ((client, broker), (broker, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        finally:
            self._close(source)
            self._close(sink)

    @staticmethod
    def _close(end: socket.socket) -> None:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


@pytest.fixture
def relay(rabbitmq_url: str) -> Iterator[Relay]:
    made = Relay("127.0.0.1", 5672)
    yield made
    made.shut()


def transport_at(url: str, timeout: int = 2) -> MessagingTransport:
    return MessagingTransport(
        new_config(overrides={(None, "transport_url"): url, ("conductor", "rpc_timeout"): timeout})
    )


def amqp_url(url: str) -> str:
    """*url* as the broker's own library wants it."""
    return url.partition("?")[0].replace("rabbit", "amqp", 1)


def within_reason(work):
    """Run *work* in a thread of its own; return what it raised. Fails if it hangs."""
    outcome: list[Exception | None] = []

    def attempt() -> None:
        try:
            work()
        except Exception as error:
            outcome.append(error)
        else:
            outcome.append(None)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(TOO_LONG)
    assert outcome, "it hangs"
    return outcome[0]


def test_without_a_broker_nothing_hangs():
    transport = transport_at("rabbit://guest:guest@127.0.0.1:1/")
    client = transport.client("autoclave-test", server="host1", version="1.0")
    server = transport.serve("autoclave-test", "host1", Endpoint(), "1.0")

    for work in (
        lambda: client.call(RequestContext.admin(), "answer"),
        lambda: client.cast(RequestContext.admin(), "answer"),
        server.start,
    ):
        assert isinstance(within_reason(work), RPCUnavailable)


def test_a_wrong_password_is_told_to_the_sender(rabbitmq_url):
    transport = transport_at(rabbitmq_url.replace("guest:guest", "guest:wrong"))
    client = transport.client("autoclave-test", server="host1", version="1.0")

    error = within_reason(lambda: client.call(RequestContext.admin(), "answer"))

    assert isinstance(error, RPCUnavailable)
    assert "ACCESS_REFUSED" in str(error)
    assert "wrong" not in str(error)


def test_a_method_that_takes_too_long_is_a_timeout_not_a_refusal(rabbitmq_url, rabbitmq_topic):
    topic = rabbitmq_topic("host1")
    endpoint = Endpoint()
    transport = transport_at(rabbitmq_url, timeout=1)
    server = transport.serve(topic, "host1", endpoint, "1.0")
    server.start()

    error = within_reason(
        lambda: transport.client(topic, server="host1", version="1.0").call(RequestContext.admin(), "dawdle")
    )

    endpoint.go_on.set()
    server.stop()
    server.wait()
    transport.close()
    assert isinstance(error, RPCTimeout)
    assert f"dawdle to {topic} at host1" in str(error)


def test_services_find_each_other_again_after_the_broker_was_away(rabbitmq_url, rabbitmq_topic, relay):
    topic = rabbitmq_topic("host1")
    url = rabbitmq_url.replace(":5672", f":{relay.port}")
    transport = transport_at(url)
    server = transport.serve(topic, "host1", Endpoint(), "1.0")
    server.start()
    client = transport.client(topic, server="host1", version="1.0")

    def find_each_other() -> None:
        give_up = time.monotonic() + TOO_LONG
        while within_reason(lambda: client.call(RequestContext.admin(), "answer")) is not None:
            assert time.monotonic() < give_up, "they do not find each other"

    find_each_other()

    relay.shut()
    assert isinstance(within_reason(lambda: client.cast(RequestContext.admin(), "answer")), RPCUnavailable)
    assert isinstance(within_reason(lambda: client.call(RequestContext.admin(), "answer")), RPCUnavailable | RPCTimeout)

    relay.let_through()
    find_each_other()

    server.stop()
    server.wait()
    transport.close()


def test_a_cast_to_an_agent_that_stopped_expires_at_the_broker(rabbitmq_url, rabbitmq_topic):
    topic = rabbitmq_topic("host1")
    transport = transport_at(rabbitmq_url, timeout=60)
    server = transport.serve(topic, "host1", Endpoint(), "1.0")
    server.start()
    server.stop()
    server.wait()

    transport.client(topic, server="host1", version="1.0").cast(RequestContext.admin(), "answer")

    with kombu.Connection(amqp_url(rabbitmq_url)) as connection:
        message = connection.default_channel.basic_get(f"{topic}.host1")
    assert message is not None, "the cast never reached the agent's queue"
    assert message.properties["expiration"] == "60000"
    transport.close()


def test_the_configuration_file_tunes_oslo_messaging_too(rabbitmq_url, rabbitmq_topic, tmp_path):
    topic = rabbitmq_topic("host1")
    config = tmp_path / "autoclave.conf"
    config.write_text(f"[DEFAULT]\ntransport_url = {rabbitmq_url}\ncontrol_exchange = {topic}\n")

    transport = MessagingTransport(new_config([str(config)]))
    transport.client(topic, server="host1", version="1.0").cast(RequestContext.admin(), "answer")
    transport.close()

    with kombu.Connection(amqp_url(rabbitmq_url)) as connection:
        channel = connection.default_channel
        channel.exchange_declare(topic, type="topic", passive=True)  # raises NotFound if nobody made it
        channel.exchange_delete(topic)
