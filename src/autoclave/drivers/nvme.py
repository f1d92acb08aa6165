"""Drive NVMe drives of any vendor, and erase them by nvme-cli or by overwriting."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from oslo_config import cfg
from oslo_log import log as logging

from autoclave.conf.agent import allowed_host_devices
from autoclave.conf.nvme import slots_that_identify
from autoclave.drivers.base import (
    CleanableDevice,
    CleanupControl,
    DiscoveredDevice,
    Driver,
    Estimate,
    Evidence,
    Inspected,
    Sighting,
)
from autoclave.drivers.nvme_inspection import EraseTrials, Finding, LayoutReadings, Slots, inspect
from autoclave.exceptions import (
    DeviceInUse,
    DeviceVanished,
    DriverMismatch,
    EraseUnsupported,
    HardwareError,
    InvalidConfiguration,
    ToolFailed,
    WrongDrive,
)
from autoclave.hardware.command import Commands
from autoclave.hardware.erase.eraser import Eraser
from autoclave.hardware.erase.methods import METHODS
from autoclave.hardware.erase.work import EraseRates
from autoclave.hardware.host import Deadline, HostPaths, Progress
from autoclave.hardware.host_setup import GuestVolumes, HostSetup
from autoclave.hardware.nvme import Controller, controller_at
from autoclave.hardware.nvme_cli import NvmeCli, refused_as_unsupported
from autoclave.hardware.sysfs import NVME_CLASS, PCIFunction, pci_functions
from autoclave.hardware.usage import holders, host_uses
from autoclave.rules.cleanup_policy import CleanupAction
from autoclave.rules.device_spec import DeviceSpec, first_match, parse_device_spec
from autoclave.rules.drive_layout import DriveLayout
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.plain_text import drive_text, tells_apart
from autoclave.rules.reclaim import RequestedBy

LOG = logging.getLogger(__name__)


class NVMeDriver(Driver):
    """Discover the host's NVMe controllers and erase them.

    A vendor's driver inherits from it, sets its own :attr:`name`, and overrides :meth:`cleanup`.
    :meth:`controller_to_erase` verifies all conditions of a destructive command.
    """

    name: ClassVar[str] = "nvme_driver"

    def __init__(self, conf: cfg.ConfigOpts, paths: HostPaths) -> None:
        super().__init__(conf, paths)
        self.commands = Commands(paths)
        self.nvme = NvmeCli(self.commands, command_timeout=conf.nvme.command_timeout)
        self._rates = EraseRates(Path(conf.agent.data_dir))
        self._slots = Slots()
        self._trials = EraseTrials()
        self._layouts = LayoutReadings()
        self._told: dict[str, str | None] = {}
        self._foreign: tuple[str, ...] = ()

    def init_host(self) -> None:
        """Verify that the tools exist and the options are valid.

        :raises ToolMissing: nvme-cli or shred is not installed.
        :raises ToolError: nvme-cli does not work.
        :raises InvalidConfiguration: ``[nvme] device_spec``, ``[nvme] identify_by_slot`` or ``[agent]
            allow_host_device`` is invalid, or drives are for flavors and this agent runs no instances.
        """
        # Check the options first: a missing tool must not hide an invalid option.
        specs, allowed, by_slot = self.device_specs, self.allowed_host_devices, self.slots_that_identify
        for spec in specs:
            if spec.requested_by is RequestedBy.FLAVOR and not self.conf.compute.enabled:
                raise InvalidConfiguration(
                    "is for drives that flavors ask for, which only an agent with [compute] enabled gives to instances",
                    option="[nvme] device_spec",
                    entry=spec.entry,
                    key="requested_by",
                )
        LOG.info("nvme-cli is version %s", self.nvme.version())
        self.commands.find("shred")
        if not specs:
            LOG.warning("[nvme] device_spec is empty: the driver %s manages no device", self.name)
        for spec in specs:
            if spec.contradiction is not None:
                LOG.error(
                    "%s. The drives of this entry are excluded; those of other entries are served", spec.contradiction
                )
        for address in sorted(allowed):
            LOG.warning("%s may be offered although this host uses it ([agent] allow_host_device)", address)
        for address in sorted(by_slot):
            LOG.info("The slot %s identifies its drive, not the serial number ([nvme] identify_by_slot)", address)

    def host_setup(self) -> Sequence[str]:
        """Return the tools of this host that would use the drives that guests return."""
        try:
            functions, _ = pci_functions(self.paths)
        except HardwareError as error:
            return [f"Cannot determine which tools of this host would take the guests' drives: {error}"]
        slots = [each.address for each in functions if self._is_for_guests(each)]
        return HostSetup(self.paths, self.commands, slots, self.conf.nvme.command_timeout).lacks()

    def _is_for_guests(self, function: PCIFunction) -> bool:
        """Return whether this host's tools must leave the drive alone: an entry selects it, and this host does not use
        it.
        """
        ids = (function.vendor_id, function.product_id, function.address, function.physfn)
        if not function.class_code.startswith(NVME_CLASS) or first_match(self.device_specs, *ids) is None:
            return False
        try:
            return not host_uses(self.paths, function)
        except HardwareError:  # discovery reports why it cannot be read
            return True

    @cached_property
    def device_specs(self) -> Sequence[DeviceSpec]:
        """Return the entries of ``[nvme] device_spec``. A contradictory one excludes its own drives only."""
        return parse_device_spec(self.conf.nvme.device_spec, keep_contradictions=True)

    @cached_property
    def allowed_host_devices(self) -> frozenset[PCIAddress]:
        """Return the addresses of ``[agent] allow_host_device``."""
        return allowed_host_devices(self.conf)

    @cached_property
    def slots_that_identify(self) -> frozenset[PCIAddress]:
        """Return the addresses of ``[nvme] identify_by_slot``."""
        return slots_that_identify(self.conf)

    def findings(self) -> Sequence[Finding]:
        """Return every NVMe controller of this host with the decision and its reasons, in bus order.

        :raises InvalidConfiguration: the options are invalid.
        :raises HardwareError: the PCI bus cannot be listed.
        """
        return self._inspected()

    def _inspected(self, only: str | None = None) -> Sequence[Finding]:
        return inspect(
            self.paths,
            self.nvme,
            self.device_specs,
            self.allowed_host_devices,
            self._slots,
            self._trials,
            self._layouts,
            self.slots_that_identify,
            only=only,
        )

    def inspect(self) -> Sequence[Inspected]:
        return [finding.inspected(self._estimated(finding)) for finding in self.findings()]

    def _estimated(self, finding: Finding) -> Estimate | None:
        if finding.refused or finding.unreadable:
            return None
        try:
            return self.estimate(finding)
        except HardwareError as error:
            return Estimate(None, str(error))

    def discover(self) -> Sequence[DiscoveredDevice | Sighting]:
        findings = self.findings()
        self._tell_foreign([finding for finding in findings if finding.foreign])
        return self._reported(findings)

    def discover_at(self, address: str) -> DiscoveredDevice | Sighting | None:
        return next(iter(self._reported(self._inspected(address))), None)

    def _reported(self, findings: Sequence[Finding]) -> Sequence[DiscoveredDevice | Sighting]:
        for finding in findings:
            if not finding.foreign:
                self._tell(finding)
        return [reported for finding in findings if (reported := finding.reported) is not None]

    def cleanup(self, device: CleanableDevice, control: CleanupControl | None = None) -> Evidence:
        """Erase the drive by its locked-in action, and leave it with its recorded layout.

        :raises HardwareError: the drive is not proved clean. See :meth:`controller_to_erase` for the errors that leave
            it unmodified, and :meth:`Eraser.erase` for the others.
        """
        control = control or self.own_control()
        try:
            action = CleanupAction(device.cleanup_action or "")
        except ValueError:
            raise EraseUnsupported(
                f"{device.pci_address} has a cleanup action that this driver does not support "
                f"({device.cleanup_action}); it was not touched"
            ) from None
        eraser = Eraser(
            self.paths,
            self.commands,
            self.nvme,
            poll_interval=self.conf.nvme.poll_interval,
            stall_timeout=self.conf.nvme.stall_timeout,
            verify=self.conf.nvme.verify,
        )
        with self.controller_to_erase(device, control) as controller:
            recorded = DriveLayout.from_json(device.layout)
            evidence = eraser.erase(controller, action, control, recorded)
            self._check_is_unused(controller_at(self.paths, PCIAddress.parse(device.pci_address)))
        for namespace in evidence.get("namespaces", ()):
            self._rates.remember(controller.model, str(action), namespace["bytes"], namespace["seconds"])
        return evidence

    def estimate(self, finding: Finding) -> Estimate | None:
        """Return the estimated duration of a drive's erase; None if it would not be erased.

        :raises HardwareError: the drive cannot be read now.
        """
        if finding.resolution is None or finding.resolution.action is None:
            return None
        controller = controller_at(self.paths, PCIAddress.parse(finding.address))
        return METHODS[finding.resolution.action].estimate(self.nvme, self._rates, controller)

    @contextmanager
    def controller_to_erase(self, device: CleanableDevice, control: CleanupControl) -> Iterator[Controller]:
        """Lock the controller in the device's slot after verifying that it may be erased.

        Discovery skips the slot inside this context. The method waits up to ``[agent] rebind_timeout`` until the host's
        driver has the controller again and shows its namespaces.

        :raises DriverMismatch: another driver, or none, still has it.
        :raises WrongDrive: the drive in the slot is not the one in the row.
        :raises DeviceInUse: this host uses it; ``[agent] allow_host_device`` does not waive that.
        :raises DeviceVanished: the slot is empty.
        :raises HardwareError: there is a second live path to the drive, or the controller does not work.
        """
        address = PCIAddress.parse(device.pci_address)
        with self._slots.hold(address, control.deadline):
            try:
                controller = self._wait_for_controller(address, control)
                self._check_may_be_erased(controller, device, control)
                yield controller
            finally:
                self._layouts.forget(address)

    def _check_may_be_erased(self, controller: Controller, device: CleanableDevice, control: CleanupControl) -> None:
        identity = self.nvme.within(control.deadline, control.tools).identify(controller.path)
        # Rows of earlier versions may have unusual bytes in another spelling.
        known = tuple(text and drive_text(text) for text in (device.drive_model, device.serial))
        # The row of a drive that its slot identifies has no serial number.
        by_slot = device.serial is None and (
            controller.address in self.slots_that_identify or not tells_apart(identity.serial)
        )
        for source, found in (
            ("the kernel", (controller.model, controller.serial)),
            ("the drive", (identity.model, identity.serial)),
        ):
            if (found[0], None if by_slot else found[1]) != known:
                raise WrongDrive(
                    f"{device.pci_address}: the drive in the slot is {found[0]} {found[1]} as {source} reports it, "
                    f"but device {device.uuid} is {device.drive_model} {device.serial}; it was not touched"
                )
        if controller.other_paths:
            raise HardwareError(
                f"{device.pci_address} ({controller.name}): the same drive is also reached through "
                f"{', '.join(controller.other_paths)}; it was not touched"
            )
        kept = self._end_guest_volumes(controller, control)
        users = holders(self.paths, controller)
        if users:
            raise DeviceInUse(
                f"{device.pci_address} ({controller.name}) is used by this host: {'; '.join([*users, *kept])}; it was "
                "not touched",
                users,
            )

    def _end_guest_volumes(self, controller: Controller, control: CleanupControl) -> list[str]:
        """End volumes that this host has activated from the data of the drive's last guest.

        :returns: those that could not be ended, with the reasons.
        """
        if not control.returned or controller.address in self.allowed_host_devices:
            return []
        volumes = GuestVolumes(self.paths, self.commands, controller, control.deadline, self.conf.nvme.command_timeout)
        outcome = volumes.end(control.tools)
        for use in outcome.ended:
            LOG.warning(
                "%s (%s): stopped the %s, which this host had activated from data that a guest left; see `autoclave "
                "plan` for how to prevent that",
                controller.address,
                controller.name,
                use,
            )
        return outcome.kept

    def _check_is_unused(self, controller: Controller) -> None:
        """Check for users again after the erase: a mount or holder may have written to the drive in the meantime.

        :raises DeviceInUse: this host uses it by now.
        """
        users = holders(self.paths, controller)
        if users:
            raise DeviceInUse(
                f"{controller.address} ({controller.name}) was erased, but this host uses it: {'; '.join(users)}. "
                "The drive holds what that use wrote: end it and clean the drive again",
                users,
            )

    def _wait_for_controller(self, address: PCIAddress, control: CleanupControl) -> Controller:
        patience = Deadline.after(min(self.conf.agent.rebind_timeout, control.deadline.remaining()))
        while True:
            try:
                controller = controller_at(self.paths, address)
                if controller.state == "live":
                    hidden = self._hidden_namespaces(controller, control)
                    # A namespace that the host never shows, such as one in an unsupported format, cannot be used on it
                    # either.
                    if not hidden or patience.passed:
                        return controller
                    problem = HardwareError(f"{controller.name} at {address} does not show {sorted(hidden)} yet")
                else:
                    problem = HardwareError(f"the controller {controller.name} at {address} is {controller.state}")
            except DeviceVanished:
                raise
            except HardwareError as e:
                problem = e
            if patience.passed:
                raise _still(problem, self.conf.agent.rebind_timeout)
            control.progress(Progress(None, f"waiting for the host's nvme driver: {problem}"))
            time.sleep(min(self.conf.nvme.poll_interval, patience.remaining()))

    def _hidden_namespaces(self, controller: Controller, control: CleanupControl) -> set[int]:
        """Return the ids of attached namespaces that the host does not show.

        A controller of NVMe 1.0 cannot list them; then only the namespaces that the host shows are known.
        """
        try:
            attached = self.nvme.within(control.deadline, control.tools).list_namespaces(controller.path)
        except ToolFailed as e:
            if not refused_as_unsupported(e):
                raise
            LOG.info("%s does not list its namespaces: %s", controller.name, e)
            return set()
        return set(attached) - {namespace.nsid for namespace in controller.namespaces}

    def _tell_foreign(self, foreign: Sequence[Finding]) -> None:
        """Log other functions than drives that the entries match, in one line, once per change."""
        addresses = tuple(finding.address for finding in foreign)
        if addresses != self._foreign:
            self._foreign = addresses
            LOG.info(
                "[nvme] device_spec matches %d functions that are not NVMe controllers; they are skipped: %s",
                len(addresses),
                ", ".join(addresses),
            )

    def _tell(self, finding: Finding) -> None:
        """Log why a configured device is not offered, once per change."""
        if finding.entry is None and finding.unreadable is None:
            return
        if finding.busy:
            LOG.debug("%s is skipped: %s", finding.address, finding.unreadable)
            return
        problem = finding.unreadable or finding.refused or finding.excluded or finding.exposed
        if problem != self._told.get(finding.address):
            self._told[finding.address] = problem
            if finding.unreadable:
                LOG.warning("%s cannot be identified now: %s", finding.address, problem)
            elif problem:
                entry = f" (device_spec entry {finding.entry.entry})" if finding.entry else ""
                LOG.error("%s%s is not offered: %s", finding.address, entry, problem)
            else:
                LOG.info("%s is readable and may be offered", finding.address)


def _still(problem: HardwareError, seconds: float) -> HardwareError:
    message = f"{problem}, even after {seconds:g} s ([agent] rebind_timeout); it was not touched"
    if isinstance(problem, DriverMismatch):
        return DriverMismatch(message, problem.driver)
    return HardwareError(message)
