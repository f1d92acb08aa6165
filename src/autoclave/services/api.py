"""The api service: the WSGI application behind cheroot."""

import errno
import os
import socket
import threading
from typing import TYPE_CHECKING

from cheroot import wsgi
from oslo_config import cfg

from autoclave.api.context import is_loopback
from autoclave.exceptions import InvalidConfiguration
from autoclave.services.http import Connection, Gateway

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

_OPTIONS = "[api] host_ip, port"
_LARGEST_HEADERS = 1 << 17
"""Bytes of a request's line and headers: a token of Keystone and the widest query of ours take a part of it."""


class Listener:
    """The address of ``[api] host_ip`` and ``port``. It is taken before anything else is done, and served last.

    :raises InvalidConfiguration: whoever reaches the address would be an administrator.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        _require_loopback(conf)
        self._where = (str(conf.api.host_ip), int(conf.api.port))
        threads = conf.api.threads + conf.api.max_waiting_requests
        self._server = wsgi.Server(self._where, None, numthreads=threads, server_name="autoclave")
        self._server.shutdown_timeout = 2
        self._server.max_request_header_size = _LARGEST_HEADERS
        self._server.gateway = Gateway
        self._server.ConnectionClass = Connection

    def open(self) -> None:
        """Take the address. Who connects from now on waits for :meth:`serve`.

        :raises InvalidConfiguration: the address is taken or is not this machine's.
        """
        try:
            self._server.prepare()
        except OSError as error:
            host, port = self._where
            raise InvalidConfiguration(
                f"cannot listen on {host}:{port}: {_why_not(host, port) or error}", option=_OPTIONS
            ) from error
        self._where = (self._where[0], int(self._server.bind_addr[1]))  # port 0 is any that is free

    def serve(self, app: "WSGIApplication") -> None:
        """Answer requests by *app* until :meth:`close`."""
        self._server.wsgi_app = app
        self._server.serve()

    def close(self) -> None:
        """Give the address back."""
        self._server.stop()

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self._where
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"


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


def _why_not(host: str, port: int) -> str | None:
    """Asked of the system once more: cheroot tells its answer only inside a sentence of its own."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        if error.errno is not None and error.errno < 0:  # what getaddrinfo says, which has numbers of its own
            return f"{host} is not known"
        if error.errno == errno.EADDRINUSE:
            return "another program does; stop it, or choose another address (`autoclave up` takes --bind HOST:PORT)"
        if error.errno == errno.EADDRNOTAVAIL:
            return "it is no address of this machine"
        return os.strerror(error.errno) if error.errno else str(error)
    return None


def _require_loopback(conf: cfg.ConfigOpts) -> None:
    if conf.api.auth_strategy != "noauth" or conf.api.noauth_beyond_loopback or is_loopback(conf.api.host_ip):
        return
    raise InvalidConfiguration(
        f"{conf.api.host_ip} is not a loopback address, and without Keystone every caller is an administrator; listen "
        "on 127.0.0.1, or set [api] auth_strategy = keystone. If whoever can connect may do everything, say so: "
        "[api] noauth_beyond_loopback = true",
        option="[api] host_ip",
    )
