"""``autoclave.wsgi:application``: the api service for gunicorn, uWSGI and mod_wsgi.

The configuration is ``autoclave.conf`` in ``OS_AUTOCLAVE_CONFIG_DIR`` (``/etc/autoclave``), or the files that
``OS_AUTOCLAVE_CONFIG_FILES`` names there, separated by semicolons.
"""

import atexit
import importlib
import io
import logging
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from oslo_config import cfg

from autoclave.conf import new_config
from autoclave.exceptions import AutoclaveError
from autoclave.services.api import make_application
from autoclave.services.service import Resources

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

LOG = logging.getLogger(__name__)

_DIRECTORY = "/etc/autoclave"
_FILE = "autoclave.conf"
_FORMAT = "%(asctime)s.%(msecs)03d %(process)d %(levelname)s %(name)s %(message)s"


def config_files(environ: Mapping[str, str]) -> list[str]:
    """Return the configuration files that *environ* names."""
    directory = environ.get("OS_AUTOCLAVE_CONFIG_DIR", "").strip() or _DIRECTORY
    names = [name.strip() for name in environ.get("OS_AUTOCLAVE_CONFIG_FILES", "").split(";")]
    return [os.path.join(directory, name) for name in names if name] or [os.path.join(directory, _FILE)]


class _ChunkedInput(io.RawIOBase):
    """A chunked body under uWSGI, whose ``wsgi.input`` does not have it.

    :param uwsgi: the module that uWSGI has in its own interpreters.
    """

    def __init__(self, uwsgi: Any) -> None:
        self._uwsgi = uwsgi
        self._piece = b""

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill *buffer* with what there is of a chunk.

        :raises OSError: it breaks off, or is not chunked as HTTP wants it.
        """
        piece = self._piece or self._uwsgi.chunked_read()
        taken = piece[: len(buffer)]
        self._piece = piece[len(buffer) :]
        buffer[: len(taken)] = taken
        return len(taken)


class UWSGI:
    """WSGI middleware that gives *app* chunked bodies under uWSGI.

    :param uwsgi: the module that uWSGI has in its own interpreters.
    """

    def __init__(self, app: "WSGIApplication", uwsgi: Any) -> None:
        self._app = app
        self._uwsgi = uwsgi

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Answer a request."""
        if "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "").lower():
            environ["wsgi.input"] = io.BufferedReader(_ChunkedInput(self._uwsgi))
            environ["wsgi.input_terminated"] = True
        return self._app(environ, start_response)


def _load() -> "WSGIApplication":
    root = logging.getLogger()
    if not root.handlers:
        logging.basicConfig(level=logging.WARNING, format=_FORMAT, datefmt="%Y-%m-%d %H:%M:%S")
        logging.getLogger("autoclave").setLevel(logging.INFO)
    resources = Resources()
    atexit.register(resources.close)
    files = config_files(os.environ)
    try:
        app = make_application(new_config(files), resources)
    except (AutoclaveError, cfg.Error) as error:
        LOG.critical("Autoclave's api cannot start with %s: %s", " and ".join(files), error)
        raise
    try:
        return UWSGI(app, importlib.import_module("uwsgi"))
    except ImportError:
        return app


application = _load()
