"""The libvirt driver."""

import time
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from autoclave.exceptions import GuestError
from autoclave.rules.instance_states import PowerState
from autoclave.virt.connection import LibvirtConnection, libvirt_module
from autoclave.virt.disks import InstanceFiles
from autoclave.virt.driver import HostInventory
from autoclave.virt.guest import DomainType, GuestSpec, domain_xml

LOG = logging.getLogger(__name__)

_QUESTION = 30.0
"""Seconds that libvirt may take to say something."""
_SHORT_QUESTION = 2.0
"""The same, while it owes another answer: an agent that asks after each of its guests must come to an end."""
_WORK = 600.0
"""Seconds for a start or an end: VFIO pins all of the guest's memory, and devices are reset."""
_LOOK_AGAIN = 0.2


class LibvirtDriver:
    """See :class:`~autoclave.virt.driver.ComputeDriver`.

    Every guest is a persistent domain, checked against libvirt's schema when it is defined. Which is the guest of an
    instance, the uuid says.

    :raises InvalidConfiguration: libvirt-python is not installed.
    """

    def __init__(self, conf: cfg.ConfigOpts, instances: InstanceFiles) -> None:
        self._conf = conf
        self._instances = instances
        self._libvirt = libvirt_module()
        self._connection = LibvirtConnection(self._libvirt, conf.compute.libvirt_uri)
        self._domain_type = DomainType(conf.compute.virt_type)

    def inventory(self) -> HostInventory:
        def ask(connection: Any) -> HostInventory:
            _, memory_mb, vcpus, *_ = connection.getInfo()
            kind, version = connection.getType(), connection.getVersion()
            return HostInventory(vcpus, memory_mb, self._instances.total_gb(), kind, version)

        found = self._connection.ask("ask what the host has", "the host", ask, within=_QUESTION)
        return found.less_reserved(self._conf)

    def spawn(self, guest: GuestSpec) -> None:
        xml = self._describe(guest)

        def spawn(connection: Any) -> None:
            if self._find(connection, guest.uuid) is not None:
                raise GuestError(f"cannot start guest {guest.uuid}: it is there already")
            self._define(connection, xml).create()

        self._connection.ask(f"start guest {guest.uuid}", guest.uuid, spawn, within=_WORK)

    def destroy(self, uuid: str) -> None:
        def destroy(connection: Any) -> None:
            domain = self._find(connection, uuid)
            if domain is None:
                return
            self._end(domain)
            self._forget(domain)
            if self._find(connection, uuid) is not None:  # as after an undefine of what runs
                raise GuestError(f"libvirt was told to end and forget guest {uuid}, and has it still")

        self._connection.ask(f"end guest {uuid}", uuid, destroy, within=_WORK)

    def start(self, uuid: str) -> None:
        def start(connection: Any) -> None:
            domain = self._known(connection, uuid)
            if not domain.isActive():
                domain.create()

        self._connection.ask(f"start guest {uuid}", uuid, start, within=_WORK)

    def stop(self, uuid: str) -> None:
        patience: float = self._conf.compute.shutdown_timeout
        self._connection.ask(
            f"stop guest {uuid}",
            uuid,
            lambda connection: self._shut_down(self._known(connection, uuid), patience),
            within=_WORK + patience,
        )

    def reboot(self, uuid: str) -> None:
        self.stop(uuid)
        self.start(uuid)

    def rebuild(self, guest: GuestSpec) -> None:
        xml = self._describe(guest)

        def rebuild(connection: Any) -> None:
            # Defined first: a running guest goes on as it is, should libvirt refuse what it is to become.
            domain = self._define(connection, xml)
            self._end(domain)
            self._instances.remove_nvram(guest.uuid)  # they say how the former system is started
            domain.create()

        self._connection.ask(f"rebuild guest {guest.uuid}", guest.uuid, rebuild, within=2 * _WORK)

    def state(self, uuid: str) -> PowerState | None:
        def ask(connection: Any) -> PowerState | None:
            domain = self._find(connection, uuid)
            return None if domain is None else self._state_of(domain)

        within = _SHORT_QUESTION if self._connection.owes else _QUESTION
        return self._connection.ask(f"ask how guest {uuid} is", uuid, ask, within=within)

    def _describe(self, guest: GuestSpec) -> str:
        self._instances.make_directory(guest.uuid)
        return domain_xml(
            guest,
            domain_type=self._domain_type,
            console_log=self._instances.console_log(guest.uuid),
            nvram=self._instances.nvram(guest.uuid),
        )

    def _define(self, connection: Any, xml: str) -> Any:
        return connection.defineXMLFlags(xml, self._libvirt.VIR_DOMAIN_DEFINE_VALIDATE)

    def _find(self, connection: Any, uuid: str) -> Any:
        try:
            return connection.lookupByUUIDString(uuid)
        except self._libvirt.libvirtError as error:
            if error.get_error_code() != self._libvirt.VIR_ERR_NO_DOMAIN:
                raise
            return None

    def _known(self, connection: Any, uuid: str) -> Any:
        domain = self._find(connection, uuid)
        if domain is None:
            raise GuestError(f"libvirt knows no guest {uuid}")
        return domain

    def _end(self, domain: Any) -> None:
        """Pull the plug; nothing is to do if it is off."""
        libvirt = self._libvirt
        try:
            if domain.isActive():
                domain.destroy()
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                return
            if error.get_error_code() != libvirt.VIR_ERR_OPERATION_INVALID or domain.isActive():
                raise

    def _forget(self, domain: Any) -> None:
        libvirt = self._libvirt
        flags = libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
        if self._domain_type is not DomainType.TEST:  # whose driver has neither of them, and refuses the flags
            flags |= libvirt.VIR_DOMAIN_UNDEFINE_NVRAM | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
        try:
            domain.undefineFlags(flags)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                raise

    def _shut_down(self, domain: Any, patience: float) -> None:
        try:
            if domain.isActive():
                domain.shutdown()
        except self._libvirt.libvirtError as error:
            LOG.warning("guest %s cannot be asked to shut down (%s); its power is cut", domain.name(), error)
            patience = 0
        until = time.monotonic() + patience
        while domain.isActive() and time.monotonic() < until:
            time.sleep(_LOOK_AGAIN)
        self._end(domain)

    def _state_of(self, domain: Any) -> PowerState | None:
        libvirt = self._libvirt
        try:
            state, reason = domain.state()
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                raise
            return None  # it went between the two questions
        if state == libvirt.VIR_DOMAIN_CRASHED:
            return PowerState.CRASHED
        if state == libvirt.VIR_DOMAIN_SHUTOFF:
            crashed = reason in (libvirt.VIR_DOMAIN_SHUTOFF_CRASHED, libvirt.VIR_DOMAIN_SHUTOFF_FAILED)
            return PowerState.CRASHED if crashed else PowerState.SHUTDOWN
        return PowerState.RUNNING
