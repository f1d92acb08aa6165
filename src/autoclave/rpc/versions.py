"""Which versions may be sent."""

from collections.abc import Mapping
from dataclasses import dataclass

from oslo_utils import versionutils

from autoclave.exceptions import RPCUnavailable
from autoclave.rpc.port import RemoteVersion


def understands(spoken: str, needed: str) -> bool:
    """Whether one that speaks *spoken* understands *needed*: the same major, and no higher minor."""
    return bool(versionutils.is_compatible(needed, spoken, same_major=True))


@dataclass(frozen=True)
class VersionGuard:
    """Decides for one client.

    :param caps: topic to the highest version that may be sent there while an upgrade is under way.
    :param remote_version: what each server says it speaks.
    """

    topic: str
    server: str | None
    caps: Mapping[str, str]
    remote_version: RemoteVersion

    def can_send(self, version: str) -> bool:
        """See ``Client.can_send_version``."""
        if not self._below_cap(version):
            return False
        if self.server is None:
            return True
        spoken = self.remote_version(self.topic, self.server)
        return spoken is not None and understands(spoken, version)

    def check_cap(self, version: str) -> None:
        """Refuse to send what the cap forbids.

        :raises RPCUnavailable: *version* is above the topic's cap.
        """
        if not self._below_cap(version):
            raise RPCUnavailable(
                f"a message of version {version} to {self.topic} was not sent: the version cap is "
                f"{self.caps[self.topic]}; raise it when every {self.topic} service is upgraded"
            )

    def _below_cap(self, version: str) -> bool:
        cap = self.caps.get(self.topic)
        return cap is None or understands(cap, version)
