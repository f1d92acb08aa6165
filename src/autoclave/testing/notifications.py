"""Notifications without a broker."""

from autoclave.rpc.notifications import Notification


class KeptNotifications:
    """Keeps them, for a listener in the same process."""

    def __init__(self) -> None:
        self.kept: list[Notification] = []

    def emit(self, notification: Notification) -> None:
        self.kept.append(notification)

    def close(self) -> None:
        """What is kept stays."""
