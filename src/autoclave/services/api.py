"""The api service: the WSGI application behind cheroot."""

import threading
from typing import TYPE_CHECKING

from cheroot import wsgi
from oslo_config import cfg

from autoclave.exceptions import InvalidConfiguration

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


class APIService:
    """Serves *app* on ``[api] host_ip`` and ``port``."""

    def __init__(self, conf: cfg.ConfigOpts, app: "WSGIApplication") -> None:
        self._where = (conf.api.host_ip, conf.api.port)
        self._server = wsgi.Server(self._where, app, numthreads=conf.api.threads, server_name="autoclave")
        self._server.shutdown_timeout = 2
        self._thread = threading.Thread(target=self._server.serve, name="api", daemon=True)

    def start(self) -> None:
        """Listen.

        :raises InvalidConfiguration: the address is taken or is not this machine's.
        """
        try:
            self._server.prepare()
        except OSError as error:
            raise InvalidConfiguration(
                f"cannot listen on {self._where[0]}:{self._where[1]}: {error.strerror or error}; choose another",
                option="[api] host_ip, port",
            ) from error
        self._thread.start()

    def stop(self) -> None:
        """Listen no more."""
        self._server.stop()
