"""Define the status codes of the NVMe base specification that a simulated controller returns."""

from enum import IntEnum

DO_NOT_RETRY = 0x4000


class Status(IntEnum):
    """List the status codes as SCT << 8 | SC."""

    INVALID_OPCODE = 0x001
    INVALID_FIELD = 0x002
    INVALID_NAMESPACE = 0x00B
    INTERNAL_ERROR = 0x006
    SANITIZE_FAILED = 0x01C
    SANITIZE_IN_PROGRESS = 0x01D
    LBA_OUT_OF_RANGE = 0x080
    INVALID_LOG_PAGE = 0x109
    INVALID_FORMAT = 0x10A
    INSUFFICIENT_CAPACITY = 0x115
    NSID_UNAVAILABLE = 0x116
    ALREADY_ATTACHED = 0x118
    NAMESPACE_IS_PRIVATE = 0x119
    NOT_ATTACHED = 0x11A
    WRITE_FAULT = 0x280


_RETRYABLE = frozenset({Status.SANITIZE_FAILED, Status.SANITIZE_IN_PROGRESS, Status.WRITE_FAULT})


class CommandFailed(Exception):
    """Report a command that the controller completed with an error.

    :attr code: the status field as nvme-cli prints it, with the Do Not Retry bit.
    """

    def __init__(self, status: Status) -> None:
        super().__init__(status.name)
        self.status = status
        self.code = status | (0 if status in _RETRYABLE else DO_NOT_RETRY)
