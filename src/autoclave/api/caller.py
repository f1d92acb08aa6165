"""The headers that say who a caller is, for :meth:`RequestContext.from_environ` to read: set by us, never by him."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

ROLES = ("admin", "manager", "member", "reader")
"""Keystone's default roles; each implies those after it."""
PROJECT = "admin"
"""The project of callers who name none."""


def as_caller(environ: "WSGIEnvironment", user: str, project: str, roles: Iterable[str]) -> "WSGIEnvironment":
    """*environ* of a request that was found to be *user*'s, without what it says of that itself."""
    passed = {name: value for name, value in environ.items() if not _says_who(name)}
    return {**passed, "HTTP_X_USER_ID": user, "HTTP_X_PROJECT_ID": project, "HTTP_X_ROLES": ",".join(roles)}


def _says_who(header: str) -> bool:
    if header in ("HTTP_X_OPENSTACK_REQUEST_ID", "HTTP_X_OPENSTACK_NOVA_API_VERSION"):
        return False
    return header.startswith(("HTTP_X_", "HTTP_OPENSTACK_SYSTEM", "keystone."))
