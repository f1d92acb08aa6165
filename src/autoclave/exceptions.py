"""The error tree.

::

    AutoclaveError
    ├── InvalidConfiguration          an option, entry or key the operator must mend
    │   └── ProviderConfigFaults      the files of [compute] provider_config_location, with all that is wrong in them
    ├── ApiError                      what an HTTP caller did or asked (carries the status code)
    │   ├── BadRequest (400)
    │   ├── Forbidden (403)
    │   ├── NotFound (404)
    │   ├── NotAcceptable (406)
    │   └── Conflict (409)
    ├── NoValidHost                   no host has what an instance needs, or none could be had
    ├── ClaimRefused                  the host must not give an instance what it asks for
    ├── StateConflict                 a swap found the row changed: somebody else was there first
    ├── DatabaseUnavailable           the database did not answer; nothing was decided
    │   └── TransactionAborted        the engine let another transaction go first; nothing was written
    ├── PolicyUnavailable             a service that a policy rule asks did not answer; nothing was decided
    ├── StorageError                  a file of an image could not be read or written
    ├── HardwareError                 something on this host
    │   ├── DeviceVanished            the function or its controller is no longer there
    │   │   └── SlotEmpty             there is no function at the address
    │   ├── DriverMismatch            the function is bound to another kernel driver
    │   ├── WrongDrive                the drive in the slot is not the one the row names
    │   ├── DeviceInUse               this host itself uses the disk
    │   ├── DeviceLocked              another worker of this agent holds the device
    │   ├── GuestError                the hypervisor did not do with a guest what was asked
    │   ├── ToolError
    │   │   ├── ToolMissing           the executable does not exist
    │   │   ├── ToolTimeout           it ran past its deadline and was killed
    │   │   ├── ToolFailed            it said that it failed
    │   │   └── ToolGarbage           it said something that cannot be understood
    │   └── EraseError
    │       ├── EraseUnsupported      the drive cannot do the action it was asked for
    │       ├── EraseFailed           the drive tried and failed
    │       ├── EraseTimeout          cleanup_timeout passed
    │       └── VerifyFailed          read back: the data is still there
    ├── PlacementError
    │   ├── PlacementUnavailable      no answer: the request may or may not have been applied
    │   ├── PlacementConflict         409: a generation moved, or the inventory is in use
    │   ├── PlacementNotFound         404
    │   └── PlacementRefused          any other 4xx or 5xx
    ├── NovaUnavailable               no answer, or none that can be used: the event may or may not have been taken
    ├── RPCError
    │   ├── RPCUnavailable            the message could not be handed over
    │   └── RPCTimeout                no answer in time: the call may still have been carried out
    └── SimulatorError                what a simulated host was asked to do cannot be done
"""

from collections.abc import Iterable, Sequence


class AutoclaveError(Exception):
    """Every error that Autoclave raises on purpose. ``str()`` of it is fit for an operator.

    A :class:`HardwareError` can be made again from its class and ``args``: so it comes back as itself from
    the process that has the privileges.
    """

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class InvalidConfiguration(AutoclaveError):
    """A configuration that cannot be used.

    :param message: what is wrong and what to do.
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
    """Provider configuration that cannot be used.

    :attr faults: everything that is wrong, in one line each that names the file.
    """

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(("The provider configuration cannot be used:", *self.faults)))


class ApiError(AutoclaveError):
    """A fault of the HTTP request, answered with :attr:`code`."""

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
    """No host has what an instance needs, or none that has it could be had.

    :attr details: what is for administrators only: hosts and providers by name.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(f"No valid host was found. {message}")
        self.details = details


class ClaimRefused(AutoclaveError):
    """The host must not give an instance what it asks for: it was not allocated, is not there, or is burned."""


class StateConflict(AutoclaveError):
    """A swap found the device or request in another state, or at another version, than it was made for."""


class DatabaseUnavailable(AutoclaveError):
    """The database did not answer. The transaction may or may not have been committed."""


class TransactionAborted(DatabaseUnavailable):
    """The engine gave the transaction up so that another could go on (deadlock, serialization failure).

    Nothing of it was written: the same transaction may be tried again.
    """


class PolicyUnavailable(AutoclaveError):
    """A service that a policy rule asks (``http:``, ``https:``) did not answer, so nothing is decided."""


class StorageError(AutoclaveError):
    """A file of an image could not be read or written: no space, no permission, no directory."""


class HardwareError(AutoclaveError):
    """Something on this host is not as it must be."""


class DeviceVanished(HardwareError):
    """The PCI function, its controller or its namespace is no longer there."""


class SlotEmpty(DeviceVanished):
    """There is no PCI function at the address."""


class DriverMismatch(HardwareError):
    """The function is bound to another kernel driver than the one needed.

    :attr driver: the driver that has it, or None when it has none.
    """

    def __init__(self, message: str, driver: str | None) -> None:
        super().__init__(message, driver)
        self.driver = driver


class WrongDrive(HardwareError):
    """The drive in the slot is not the one that the device row names."""


class DeviceInUse(HardwareError):
    """This host itself uses the disk.

    :attr holders: who, in words, one line each.
    """

    def __init__(self, message: str, holders: Sequence[str]) -> None:
        self.holders = tuple(holders)
        super().__init__(message, self.holders)


class DeviceLocked(HardwareError):
    """Another worker of this agent holds the device."""


class GuestError(HardwareError):
    """The hypervisor did not do with a guest what was asked, or did not answer: it may have done it all the same."""


class ToolError(HardwareError):
    """An external command did not do what was asked.

    :attr argv: the command as it was run.
    """

    def __init__(self, message: str, argv: Sequence[str]) -> None:
        self.argv = tuple(argv)
        super().__init__(message, self.argv)


class ToolMissing(ToolError):
    """The executable does not exist or may not be run."""


class ToolTimeout(ToolError):
    """The command ran past its deadline; its whole process group was killed."""


class ToolFailed(ToolError):
    """The command said that it failed.

    :attr returncode: its exit code (negative: the signal that ended it).
    :attr status: the NVMe status code (SCT << 8 | SC, without DNR and More) where one was given.
    """

    def __init__(self, message: str, argv: Sequence[str], returncode: int, status: int | None = None) -> None:
        super().__init__(message, argv)
        self.returncode = returncode
        self.status = status
        self.args = (message, self.argv, returncode, status)


class ToolGarbage(ToolError):
    """The command exited with success, but its output cannot be understood."""


class EraseError(HardwareError):
    """The drive was not proved clean."""


class EraseUnsupported(EraseError):
    """The drive cannot do the action that was locked in."""


class EraseFailed(EraseError):
    """The drive tried and failed."""


class EraseTimeout(EraseError):
    """``[nvme] cleanup_timeout`` passed before the drive was clean."""


class VerifyFailed(EraseError):
    """The tool reported success, but what was read back is not zero."""


class PlacementError(AutoclaveError):
    """Placement did not do what was asked."""


class PlacementUnavailable(PlacementError):
    """Placement did not answer. The request may or may not have been applied."""


class PlacementConflict(PlacementError):
    """409: the generation moved on, or the record is in use.

    :attr code: Placement's own error code, such as ``placement.concurrent_update``.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code

    @property
    def moved_on(self) -> bool:
        """Whether somebody else has written the record meanwhile: read it again."""
        return self.code == "placement.concurrent_update"


class PlacementNotFound(PlacementError):
    """404: the provider, inventory, trait or class does not exist."""


class TraitsMissing(PlacementError):
    """A device is to be offered, and its provider has not all the traits yet that say what it is."""


class PlacementRefused(PlacementError):
    """Any other 4xx or 5xx.

    :attr status: the HTTP status code.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class NovaUnavailable(AutoclaveError):
    """Nova did not answer, or not as Nova answers. It may have taken an event all the same."""


class RPCError(AutoclaveError):
    """A message between services was not carried out."""


class RPCUnavailable(RPCError):
    """The message could not be handed over, or nobody serves the version it needs."""


class RPCTimeout(RPCError):
    """No answer in time: the call may still have been carried out."""


class SimulatorError(AutoclaveError):
    """What a simulated host was asked to do cannot be done: no such host, slot or fault, or the drive refuses."""
