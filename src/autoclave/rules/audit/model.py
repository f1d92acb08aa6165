"""What an audit finds: a kind of disagreement, where, and what to do about it."""

from typing import Any, NamedTuple

from autoclave.rules.audit.kinds import Kind
from autoclave.rules.audit.severity import Severity


class Finding(NamedTuple):
    """Something that was found.

    :param subject: the slot or the host that it is about.
    :param seen: what was seen where.
    :param remedy: what to do, with all names filled in.
    :param device: uuid of the device, if it is one's; of the root provider, if it is about instances of a host.
    :param about: what tells it from others of its kind at the same subject, such as a consumer.
    :param version: of the device's row when it was found.
    """

    kind: Kind
    subject: str
    seen: str
    remedy: str
    device: str | None = None
    about: str = ""
    version: tuple[int, int] | None = None

    @property
    def counts(self) -> bool:
        """Whether it is a disagreement, and no mere information."""
        return self.kind.severity is not Severity.INFO

    @property
    def identity(self) -> tuple[Any, ...]:
        """The same for two looks that found the same thing."""
        return self.kind, self.subject, self.about, self.version
