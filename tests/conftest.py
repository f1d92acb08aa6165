"""Fixtures that more than one kind of test needs."""

import gc
import os
import re
import socket
import subprocess
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import autoclave.objects  # noqa: F401 - chooses the threads before a test imports a library that would choose eventlet

_RABBITMQ = ("127.0.0.1", 5672)
_INTEGRATION = Path(__file__).parent / "integration"
_WHOLLY_THOROUGH = re.compile(r"^pytestmark = pytest\.mark\.(thorough|integration)$", re.MULTILINE)

# All servers of the tests are on this machine, and no proxy of whoever runs them leads there.
for _name in [name for name in os.environ if name.lower() in ("http_proxy", "https_proxy", "all_proxy")]:
    del os.environ[_name]

# How long an example takes says how busy the machine is, not whether it is right.
settings.register_profile("however busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("however busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="what people wait for: one case of each matrix, no servers")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what is imported and collected out of every later search for garbage: all of it stays until the end.

    Each search of all generations would otherwise walk through some hundred thousand such objects.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(10_000)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import a module of which ``make test`` runs nothing."""
    if not config.getoption("quick"):
        return None
    if collection_path == _INTEGRATION:
        return True
    is_module = collection_path.suffix == ".py" and collection_path.name.startswith("test_")
    return True if is_module and _WHOLLY_THOROUGH.search(collection_path.read_text()) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what ``make test`` does not run."""
    if not config.getoption("quick"):
        return
    quick, left_out, seen = [], [], set()
    for item in items:
        test = item.nodeid.partition("[")[0]
        markers = {marker.name for marker in item.iter_markers()}
        takes_long = markers & {"thorough", "integration"} or item.path.is_relative_to(_INTEGRATION)
        one_more = "matrix" in markers and test in seen
        (left_out if takes_long or one_more else quick).append(item)
        seen.add(test)
    config.hook.pytest_deselected(items=left_out)
    items[:] = quick


@pytest.fixture(scope="session")
def rabbitmq_url() -> str:
    """A RabbitMQ on this machine; reply and fan-out queues vanish by themselves a few seconds after use."""
    try:
        socket.create_connection(_RABBITMQ, timeout=30).close()
    except OSError as error:
        pytest.skip(f"no RabbitMQ at {_RABBITMQ[0]}:{_RABBITMQ[1]}: {error}")
    return f"rabbit://guest:guest@{_RABBITMQ[0]}:{_RABBITMQ[1]}/?rabbit_transient_queues_ttl=10"


@pytest.fixture(scope="session")
def rabbitmq_vhost_url(rabbitmq_url: str) -> Iterator[str]:
    """The same RabbitMQ, with a virtual host of its own if this account may make one.

    The services' topics have the same names in every deployment: in one virtual host, another one's conductor would
    take our messages.
    """
    name = f"autoclave-test-{uuid.uuid4().hex[:12]}"

    def control(*arguments: str) -> bool:
        try:
            done = subprocess.run(["rabbitmqctl", "-q", *arguments], capture_output=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0

    if not control("add_vhost", name):
        yield rabbitmq_url
        return
    try:
        assert control("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
        yield rabbitmq_url.replace("/?", f"/{name}?")
    finally:
        control("delete_vhost", name)


@pytest.fixture(scope="module")
def rabbitmq_topic(rabbitmq_url: str) -> Iterator[Callable[..., str]]:
    """Makes topics that nobody else uses; the queues of the servers named are deleted afterwards."""
    import kombu

    queues = []

    def new_topic(*servers: str) -> str:
        topic = f"autoclave-test-{uuid.uuid4().hex[:12]}"
        queues.extend([topic, *(f"{topic}.{server}" for server in servers)])
        return topic

    yield new_topic
    with kombu.Connection(rabbitmq_url.partition("?")[0].replace("rabbit", "amqp", 1)) as connection:
        for queue in queues:
            connection.default_channel.queue_delete(queue)
