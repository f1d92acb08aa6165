"""Other WSGI applications under a path of this service, such as the embedded Placement at ``/placement``."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


def mounted(app: "WSGIApplication", mounts: "Mapping[str, WSGIApplication]") -> "WSGIApplication":
    """*app*, with each of *mounts* answering below its prefix; the longest prefix counts.

    What is mounted sees its own root: the prefix moves to SCRIPT_NAME, so that its links stay right.
    """
    by_length = sorted(((prefix.rstrip("/"), other) for prefix, other in mounts.items()), key=lambda m: -len(m[0]))

    def dispatch(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        for prefix, other in by_length:
            if path == prefix or path.startswith(f"{prefix}/"):
                below = {
                    **environ,
                    "SCRIPT_NAME": f"{environ.get('SCRIPT_NAME', '')}{prefix}",
                    "PATH_INFO": path[len(prefix) :],
                }
                return other(below, start_response)
        return app(environ, start_response)

    return dispatch
