"""Who asks, and under which request id."""

from typing import Any

from oslo_context import context


class RequestContext(context.RequestContext):  # type: ignore[misc]
    """The context of one request, from the API through the conductor to the agent.

    Made by ``RequestContext.from_environ(environ)`` in the API, by :meth:`from_dict` where a message
    arrives, and by :meth:`admin` for work that no user asked for. Making one also makes it the
    thread's current context, so that log lines carry its request id.
    """

    FROM_DICT_EXTRA_KEYS = ["service_roles"]  # noqa: RUF012 - the library's own hook

    request_id: str
    user_id: str | None
    project_id: str | None
    roles: list[str]
    service_roles: list[str]

    def to_dict(self) -> dict[str, Any]:
        """The context as JSON-serialisable values. Tokens stay here: no service uses a caller's token."""
        values: dict[str, Any] = super().to_dict()
        del values["auth_token"]
        values["service_roles"] = list(self.service_roles)
        return values

    @classmethod
    def admin(cls, request_id: str | None = None) -> "RequestContext":
        """A context for the system's own work, with a new request id unless *request_id* is given."""
        return cls(is_admin=True, roles=["admin"], request_id=request_id)
