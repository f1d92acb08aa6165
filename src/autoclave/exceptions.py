"""Define the error tree.

::

    AutoclaveError
    ├── InvalidConfiguration          an option, entry or key that the operator must change
    │   └── ProviderConfigFaults      the files of [compute] provider_config_location, with every fault
    ├── ApiError                      a fault of an HTTP request (carries the status code)
    │   ├── BadRequest (400)
    │   ├── Forbidden (403)
    │   ├── NotFound (404)
    │   ├── NotAcceptable (406)
    │   └── Conflict (409)
    ├── NoValidHost                   no host fits an instance, or none could be allocated
    ├── ClaimRefused                  the host must not give an instance what it claims
    ├── StateConflict                 a transition found the row changed concurrently
    ├── DatabaseUnavailable           the database did not answer; no decision was made
    │   └── TransactionAborted        the engine aborted the transaction; nothing was written
    ├── PolicyUnavailable             a service that a policy rule asks did not answer
    ├── StorageError                  a file of an image could not be read or written
    ├── HardwareError                 a fault of this host's hardware or tools
    │   ├── DeviceVanished            the function or its controller is no longer there
    │   │   └── SlotEmpty             there is no function at the address
    │   ├── DriverMismatch            the function is bound to another kernel driver
    │   ├── WrongDrive                the drive in the slot differs from the row
    │   ├── DeviceInUse               this host itself uses the disk
    │   ├── DeviceLocked              another worker of this agent holds the device
    │   ├── GuestError                a hypervisor's operation failed
    │   ├── ToolError
    │   │   ├── ToolMissing           the executable does not exist
    │   │   ├── ToolTimeout           it ran past its deadline and was killed
    │   │   ├── ToolFailed            it returned a failure
    │   │   └── ToolGarbage           its output cannot be parsed
    │   └── EraseError
    │       ├── EraseUnsupported      the drive does not support the action
    │       ├── EraseFailed           the drive tried and failed
    │       ├── EraseTimeout          cleanup_timeout passed
    │       └── VerifyFailed          read back: the data is still there
    ├── PlacementError
    │   ├── PlacementUnavailable      no answer: the request may or may not have been applied
    │   ├── PlacementConflict         409: a generation moved, or the inventory is in use
    │   ├── PlacementNotFound         404
    │   └── PlacementRefused          any other 4xx or 5xx
    ├── NovaUnavailable               no valid answer: the event may or may not have been accepted
    ├── RPCError
    │   ├── RPCUnavailable            the message was not delivered
    │   └── RPCTimeout                no answer in time: the call may still have been carried out
    └── SimulatorError                a simulated host cannot do the action
"""

from collections.abc import Iterable, Sequence


class AutoclaveError(Exception):
    """Report any error that Autoclave raises on purpose. ``str()`` of it is readable for an operator.

    A :class:`HardwareError` can be recreated from its class and ``args``. So it crosses the boundary of the
    privileged process unchanged.
    """

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class InvalidConfiguration(AutoclaveError):
    """Report an unusable configuration.

    :param message: the fault and the remedy.
    :param option: the option, as ``[group] name``.
    :param entry: the entry of a multi-valued option, counted from 1, or its text.
    :param key: the key inside the entry.
    """

    def __init__(
        self,
        message: str,
        *,
        option: str | None = None,
        entry: int | str | None = None,
        key: str | None = None,
    ) -> None:
        self.message = message
        self.option = option
        self.entry = entry
        self.key = key
        where = [part for part in (option, None if entry is None else f"entry {entry}", key and f"key {key!r}") if part]
        super().__init__(f"{', '.join(where)}: {message}" if where else message)


class ProviderConfigFaults(InvalidConfiguration):
    """Report unusable provider configuration.

    :attr faults: every fault, one line each, with the name of the file.
    """

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(("The provider configuration cannot be used:", *self.faults)))


class ApiError(AutoclaveError):
    """Report a fault of the HTTP request, answered with :attr:`code`."""

    code = 500


class BadRequest(ApiError):
    code = 400


class Forbidden(ApiError):
    code = 403


class NotFound(ApiError):
    code = 404


class NotAcceptable(ApiError):
    code = 406


class Conflict(ApiError):
    code = 409


class NoValidHost(AutoclaveError):
    """Report that no host fits an instance, or that none could be allocated.

    :attr details: hosts and providers by name, for administrators only.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(f"No valid host was found. {message}")
        self.details = details


class ClaimRefused(AutoclaveError):
    """Report that the host must not give an instance what it claims: not allocated, missing, or burned."""


class StateConflict(AutoclaveError):
    """Report that a transition found the device or request in another state, or at another version."""


class DatabaseUnavailable(AutoclaveError):
    """Report that the database did not answer. The transaction may or may not have been committed."""


class TransactionAborted(DatabaseUnavailable):
    """Report that the engine aborted the transaction in favour of another (deadlock, serialization failure).

    Nothing of it was written: retry the same transaction.
    """


class PolicyUnavailable(AutoclaveError):
    """Report that a service that a policy rule asks (``http:``, ``https:``) did not answer. No decision was made."""


class StorageError(AutoclaveError):
    """Report that a file of an image could not be read or written: no space, no permission, no directory."""


class HardwareError(AutoclaveError):
    """Report a fault of this host's hardware or of its tools."""


class DeviceVanished(HardwareError):
    """Report that the PCI function, its controller or its namespace no longer exists."""


class SlotEmpty(DeviceVanished):
    """Report that there is no PCI function at the address."""


class DriverMismatch(HardwareError):
    """Report that the function is bound to the wrong kernel driver.

    :attr driver: the bound driver, or None.
    """

    def __init__(self, message: str, driver: str | None) -> None:
        super().__init__(message, driver)
        self.driver = driver


class WrongDrive(HardwareError):
    """Report that the drive in the slot differs from the device row."""


class DeviceInUse(HardwareError):
    """Report that this host itself uses the disk.

    :attr holders: the users, one line each.
    """

    def __init__(self, message: str, holders: Sequence[str]) -> None:
        self.holders = tuple(holders)
        super().__init__(message, self.holders)


class DeviceLocked(HardwareError):
    """Report that another worker of this agent has locked the device."""


class GuestError(HardwareError):
    """Report that a hypervisor's operation failed or was not answered. It may have been carried out."""


class ToolError(HardwareError):
    """Report that an external command failed.

    :attr argv: the command as it was run.
    """

    def __init__(self, message: str, argv: Sequence[str]) -> None:
        self.argv = tuple(argv)
        super().__init__(message, self.argv)


class ToolMissing(ToolError):
    """Report that the executable does not exist or may not be run."""


class ToolTimeout(ToolError):
    """Report that the command ran past its deadline; its process group was killed."""


class ToolFailed(ToolError):
    """Report that the command returned a failure.

    :attr returncode: its exit code (negative: the signal that ended it).
    :attr status: the NVMe status code (SCT << 8 | SC, without DNR and More) where one was given.
    """

    def __init__(self, message: str, argv: Sequence[str], returncode: int, status: int | None = None) -> None:
        super().__init__(message, argv)
        self.returncode = returncode
        self.status = status
        self.args = (message, self.argv, returncode, status)


class ToolGarbage(ToolError):
    """Report that the command succeeded, but its output cannot be parsed."""


class EraseError(HardwareError):
    """Report that the drive was not proved clean."""


class EraseUnsupported(EraseError):
    """Report that the drive does not support the recorded action."""


class EraseFailed(EraseError):
    """Report that the drive failed the action."""


class EraseTimeout(EraseError):
    """Report that ``[nvme] cleanup_timeout`` passed before the drive was clean."""


class VerifyFailed(EraseError):
    """Report that data was read back that is not zero, although the tool succeeded."""


class PlacementError(AutoclaveError):
    """Report that a request to Placement failed."""


class PlacementUnavailable(PlacementError):
    """Report that Placement did not answer. The request may or may not have been applied."""


class PlacementConflict(PlacementError):
    """Report 409: the generation has changed, or the record is in use.

    :attr code: Placement's own error code, such as ``placement.concurrent_update``.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code

    @property
    def moved_on(self) -> bool:
        """Return whether the record was changed concurrently: read it again."""
        return self.code == "placement.concurrent_update"


class PlacementNotFound(PlacementError):
    """Report 404: the provider, inventory, trait or class does not exist."""


class TraitsMissing(PlacementError):
    """Report that a device cannot be offered yet, because its provider lacks traits."""


class PlacementRefused(PlacementError):
    """Report any other 4xx or 5xx.

    :attr status: the HTTP status code.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class NovaUnavailable(AutoclaveError):
    """Report that Nova did not answer, or gave an invalid answer. It may have accepted an event."""


class RPCError(AutoclaveError):
    """Report that a message between services was not carried out."""


class RPCUnavailable(RPCError):
    """Report that the message was not delivered, or that no service supports its version."""


class RPCTimeout(RPCError):
    """Report that no answer came in time: the call may still have been carried out."""


class SimulatorError(AutoclaveError):
    """Report that a simulated host cannot do the action: no such host, slot or fault, or the drive refuses."""
