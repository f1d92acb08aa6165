"""Which hosts a request may be for, where nobody has to say who he is.

A page in a browser on this machine can send requests here once its own name resolves to a loopback
address. The browser then believes them to be the page's own, but they still carry the page's name.
"""

from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from autoclave.api.errors import answer

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


def is_loopback(host: str) -> bool:
    """Whether *host*, an address or a name, can only be this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def expected_hosts(conf: Any, app: "WSGIApplication") -> "WSGIApplication":
    """*app*; with ``auth_strategy = noauth`` only for requests to a loopback address or to ``public_endpoint``.

    With ``noauth_beyond_loopback`` also for those to any address: a page has a name.
    """
    if conf.api.auth_strategy != "noauth":
        return app
    public = urlsplit(conf.api.public_endpoint or "").hostname
    good: Callable[[str], bool] = _is_address if conf.api.noauth_beyond_loopback else is_loopback

    def refuse_others(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        asked = environ.get("HTTP_HOST", "localhost")  # only HTTP/1.0 goes without, and no browser speaks that
        try:
            host = urlsplit(f"//{asked}").hostname or ""
        except ValueError:
            host = ""
        if host == public or good(host):
            return app(environ, start_response)
        said = f"Nothing is served under the name {asked!r}; [api] public_endpoint says under which else."
        return answer(environ, start_response, 403, said)

    return refuse_others


def _is_address(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
