"""The api service: the WSGI application behind uvicorn."""

import errno
import os
import socket
import threading
from typing import TYPE_CHECKING

import uvicorn
from oslo_config import cfg

from autoclave.api.app import create_app
from autoclave.api.context import is_loopback
from autoclave.exceptions import InvalidConfiguration
from autoclave.services.http import Connection, Gateway
from autoclave.services.service import Resources, cloud_parts

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

_OPTIONS = "[api] host_ip, port"
_LARGEST_HEADERS = 1 << 17
"""Bytes of a request's line and headers: a token of Keystone and the widest query of ours take a part of it."""
_BACKLOG = 512
"""Connections that the system keeps until they are accepted."""
_KEEP_ALIVE = 10
"""Seconds for which an idle connection is kept."""
_STOP = 10
"""Seconds for requests in progress when the service stops."""


class Listener:
    """The address of ``[api] host_ip`` and ``port``. It is taken before anything else is done, and served last.

    :raises InvalidConfiguration: every client that reaches the address would be an administrator.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        _require_loopback(conf)
        self._where = (str(conf.api.host_ip), int(conf.api.port))
        self._gateway = Gateway(conf.api.threads + conf.api.max_waiting_requests)
        self._server = _server(self._gateway)
        self._socket: socket.socket | None = None
        self._begun = False
        self._ended = threading.Event()

    def open(self) -> None:
        """Take the address. Connections wait for :meth:`serve` from now on.

        :raises InvalidConfiguration: the address is taken, or is not this machine's.
        """
        host, port = self._where
        try:
            self._socket = _listening(host, port)
        except OSError as error:
            raise InvalidConfiguration(
                f"cannot listen on {host}:{port}: {_reason(host, error)}", option=_OPTIONS
            ) from error
        self._where = (host, int(self._socket.getsockname()[1]))  # port 0 is any that is free

    def serve(self, app: "WSGIApplication") -> None:
        """Answer requests by *app* until :meth:`close`."""
        self._gateway.app = app
        self._begun = True
        try:
            if not self._server.should_exit:
                assert self._socket is not None
                self._server.run(sockets=[self._socket])
        finally:
            self._gateway.close()
            self._ended.set()

    def close(self) -> None:
        """Give the address back when the requests in progress are answered."""
        self._server.should_exit = True
        if self._begun:
            self._ended.wait()
        if self._socket is not None:
            self._socket.close()

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self._where
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def make_application(conf: cfg.ConfigOpts, resources: Resources) -> "WSGIApplication":
    """Make the application for a WSGI server that may fork afterwards: no connection is open.

    :param resources: gets what must be closed at the end.
    :raises AutoclaveError: the configuration cannot be used, every client would be an administrator, the database does
        not answer, or has another schema.
    """
    if conf.api.auth_strategy == "noauth" and not conf.api.noauth_beyond_loopback:
        raise InvalidConfiguration(
            "is noauth, and the listen address of the server is unknown: every client that reaches it would be an "
            "administrator. Set keystone, or [api] noauth_beyond_loopback = true",
            option="[api] auth_strategy",
        )
    ports, transport = cloud_parts(conf, resources)
    ports.db.dispose()
    return create_app(conf, ports, transport)


class APIService:
    """Serves *app* on a *listener* that is open."""

    def __init__(self, listener: Listener, app: "WSGIApplication") -> None:
        self._listener = listener
        self._thread = threading.Thread(target=listener.serve, args=(app,), name="api", daemon=True)

    def start(self) -> None:
        """Answer."""
        self._thread.start()

    def stop(self) -> None:
        """Listen no more."""
        self._listener.close()


def _server(gateway: Gateway) -> uvicorn.Server:
    config = uvicorn.Config(
        gateway,
        loop="asyncio",
        http=Connection,
        ws="none",
        interface="asgi3",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # oslo.middleware reads them, where it is configured to
        server_header=False,
        headers=[("Server", "autoclave")],
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=_STOP,
        h11_max_incomplete_event_size=_LARGEST_HEADERS,
    )
    return uvicorn.Server(config)


def _listening(host: str, port: int) -> socket.socket:
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    both = family == socket.AF_INET6 and host in ("::", "::0") and socket.has_dualstack_ipv6()
    return socket.create_server(address[:2], family=family, backlog=_BACKLOG, dualstack_ipv6=both)


def _reason(host: str, error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"{host} cannot be resolved"
    if error.errno == errno.EADDRINUSE:
        return (
            "another program listens there; stop it, or choose another address (`autoclave up` takes --bind HOST:PORT)"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return "the address is not assigned to this machine"
    return os.strerror(error.errno) if error.errno else str(error)


def _require_loopback(conf: cfg.ConfigOpts) -> None:
    if conf.api.auth_strategy != "noauth" or conf.api.noauth_beyond_loopback or is_loopback(conf.api.host_ip):
        return
    raise InvalidConfiguration(
        f"{conf.api.host_ip} is not a loopback address, and without Keystone every caller is an administrator; "
        "listen on 127.0.0.1, or set [api] auth_strategy = keystone. To make every client that can connect an "
        "administrator, set [api] noauth_beyond_loopback = true",
        option="[api] host_ip",
    )
