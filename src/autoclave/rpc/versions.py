"""Which versions may be sent."""

from collections.abc import Mapping
from dataclasses import dataclass

from oslo_utils import versionutils

from autoclave.exceptions import RPCUnavailable
from autoclave.rpc.port import RemoteVersion


def understands(spoken: str, needed: str) -> bool:
    """Whether one that speaks *spoken* understands *needed*: the same major, and no higher minor."""
    return bool(versionutils.is_compatible(needed, spoken, same_major=True))


def lack(spoken: str, needed: str) -> str | None:
    """What is wrong with one that speaks *spoken*, where *needed* is; None: it understands that."""
    return None if understands(spoken, needed) else f"speaks RPC {spoken}, not {needed}: upgrade it"


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

    def refusal(self, version: str) -> str | None:
        """See ``Client.refusal``."""
        if not self._below_cap(version):
            return f"the version cap of {self.topic} is {self.caps[self.topic]}: raise [upgrade_levels]"
        if self.server is None:
            return None
        spoken = self.remote_version(self.topic, self.server)
        if spoken is None:
            return (
                f"{self.topic} at {self.server} never said which RPC version it speaks, as one that is too old for "
                f"{version}, or never ran: upgrade it, or start it"
            )
        lacking = lack(spoken, version)
        return None if lacking is None else f"{self.topic} at {self.server} {lacking}"

    def check_cap(self, version: str) -> None:
        """Refuse to send what the cap forbids.

        :raises RPCUnavailable: *version* is above the topic's cap.
        """
        if not self._below_cap(version):
            raise RPCUnavailable(
                f"a message of version {version} to {self.topic} was not sent: the version cap is "
                f"{self.caps[self.topic]}; raise it ([upgrade_levels]) when every {self.topic} service is upgraded"
            )

    def _below_cap(self, version: str) -> bool:
        cap = self.caps.get(self.topic)
        return cap is None or understands(cap, version)
