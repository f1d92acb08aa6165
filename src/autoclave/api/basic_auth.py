"""``[api] auth_strategy = http_basic``: a file of users and bcrypt hashes, in the place of Keystone.

The parsing and the comparison are oslo.middleware's. Its middleware is not used: it answers 401 to whatever
its application raises, names no scheme in its 401, and reads one global configuration.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oslo_log import log as logging
from oslo_middleware import basic_auth
from webob.exc import HTTPError

from autoclave.api.caller import PROJECT, ROLES, as_caller
from autoclave.api.errors import answer
from autoclave.exceptions import InvalidConfiguration

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

LOG = logging.getLogger(__name__)

OPTION = "[api] http_basic_auth_user_file"
CHALLENGE = 'Basic realm="Autoclave", charset="UTF-8"'

_BCRYPT = re.compile(r"\$2[aby]\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}")
_LONGEST_NAME = 64  # as that of a user of Keystone's; it goes into the history of devices


class Users:
    """The users of a file such as ``htpasswd -B`` writes: a line ``name:hash`` each; ``#`` begins a comment.

    It is read for each request, which is nothing beside the price of a hash: who was taken out of it is out.

    :raises InvalidConfiguration: it cannot be read, a line is malformed, or it names nobody.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read()

    def knows(self, name: str, password: bytes) -> bool:
        """Whether *name* is one of them, and *password* is his.

        :raises InvalidConfiguration: the file has become unusable; nobody is known until it is mended.
        """
        entries = self._read()
        entry = entries.get(name)
        try:
            # An unknown name takes as long as a known one: how long it takes tells nobody who there is.
            basic_auth.auth_entry(entry or next(iter(entries.values())), password)
        except (HTTPError, ValueError):  # the second: a password that bcrypt cannot take, such as a very long one
            return False
        return entry is not None

    def _read(self) -> dict[str, str]:
        try:
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidConfiguration(f"{self._path} cannot be read: {error}", option=OPTION) from error
        return _parsed(self._path, text)


def http_basic(conf: Any, app: "WSGIApplication") -> "WSGIApplication":
    """*app* for the users of ``[api] http_basic_auth_user_file``, each of whom is an administrator.

    :raises InvalidConfiguration: see :class:`Users`.
    """
    users = Users(Path(conf.api.http_basic_auth_user_file))
    logged: str | None = None

    def guarded(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        nonlocal logged
        environ = dict(environ)
        try:
            name, password = basic_auth.parse_token(basic_auth.parse_header(environ))
            known = users.knows(name, password)
            logged = None
        except HTTPError:
            known = False
        except InvalidConfiguration as error:
            if str(error) != logged:  # once, not for each request
                LOG.error("Every caller is refused until the file of users is mended: %s", error)
            logged = str(error)
            return answer(environ, start_response, 503, "The service cannot find out who you are; its log tells why.")
        if not known:
            said = "Say who you are: a user and a password of this service, as HTTP basic authentication."
            return answer(environ, start_response, 401, said, ("WWW-Authenticate", CHALLENGE))
        return app(as_caller(environ, name, PROJECT, ROLES), start_response)

    return guarded


def _parsed(path: Path, text: str) -> dict[str, str]:
    lines: dict[str, int] = {}
    entries: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if not line or line.startswith("#"):
            continue
        name, colon, crypted = line.partition(":")
        if not colon or not name or len(name) > _LONGEST_NAME or not name.isprintable():
            wrong = f"is not name:hash, with a name of at most {_LONGEST_NAME} characters"
        elif not _BCRYPT.fullmatch(crypted):
            wrong = f"has no bcrypt hash for {name}; make one with `htpasswd -nB {name}`"
        elif name in lines:
            wrong = f"names {name} again, after line {lines[name]}"
        else:
            lines[name], entries[name] = number, line
            continue
        raise InvalidConfiguration(f"line {number} of {path} {wrong}", option=OPTION)
    if not entries:
        raise InvalidConfiguration(f"{path} names no user, so nobody could be let in", option=OPTION)
    return entries
