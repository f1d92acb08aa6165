"""Run guests by libvirt.

The connection is opened on demand, and every wait for an answer is limited.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from types import ModuleType
from typing import Any, TypeVar

from oslo_config import cfg
from oslo_log import log as logging

from autoclave.exceptions import GuestError, InvalidConfiguration
from autoclave.rules.instance_states import PowerState
from autoclave.virt.disks import InstanceFiles
from autoclave.virt.driver import HostInventory
from autoclave.virt.guest import DomainType, GuestSpec, domain_xml

LOG = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")


def libvirt_module() -> ModuleType:
    """Import libvirt-python, and keep its errors off stderr: they are raised as well.

    :raises InvalidConfiguration: it is not installed.
    """
    try:
        import libvirt
    except ImportError as error:
        raise InvalidConfiguration(
            f"libvirt needs libvirt-python ({error}): install libvirt's headers (libvirt-dev), pkg-config and a C "
            "compiler, and then: pip install 'autoclave[libvirt]'",
            option="[compute] virt_driver",
        ) from error
    libvirt.registerErrorHandler(_said, None)
    module: ModuleType = libvirt
    return module


def _said(_context: object, error: tuple[Any, ...]) -> None:
    LOG.debug("libvirt: %s", error[2])


class LibvirtConnection:
    """Share one connection among all threads of the agent.

    Each call runs in a thread of its own, so that a hanging libvirt or QEMU does not block the agent. While a call for
    a guest has no answer, no other call for it is sent. A late start could otherwise follow the guest's end.

    :param module: see :func:`libvirt_module`.
    :param uri: the hypervisor.
    """

    def __init__(self, module: ModuleType, uri: str) -> None:
        self._libvirt = module
        self._uri = uri
        self._opening = threading.Lock()
        self._connection: Any = None
        self._unanswered: dict[str, tuple[str, Future[Any]]] = {}

    @property
    def owes(self) -> bool:
        """Return whether an abandoned call still has no answer."""
        return any(not answer.done() for _, answer in list(self._unanswered.values()))

    def ask(self, deed: str, about: str, call: Callable[[Any], _Answer], *, within: float) -> _Answer:
        """Return the result of *call*, which gets the open connection.

        :param deed: its purpose, for the error: "could not …".
        :param about: the guest's uuid, or another subject.
        :param within: seconds to wait.
        :raises GuestError: libvirt refuses, is unreachable, or does not answer; contains libvirt's message.
        """
        earlier_deed, earlier = self._unanswered.get(about, ("", None))
        if earlier is not None:
            if not wait([earlier], within).done:
                raise GuestError(f"cannot {deed}: libvirt at {self._uri} has not answered yet to: {earlier_deed}")
            self._unanswered.pop(about, None)
        answer: Future[_Answer] = Future()
        threading.Thread(target=self._run, args=(call, answer), name=f"libvirt: {deed}", daemon=True).start()
        if not wait([answer], within).done:
            self._unanswered[about] = deed, answer
            raise GuestError(
                f"cannot {deed}: libvirt at {self._uri} did not answer within {within:g} s; libvirt may still do it"
            )
        try:
            return answer.result()
        except self._libvirt.libvirtError as error:
            raise GuestError(f"cannot {deed}: {error}") from error

    def _run(self, call: Callable[[Any], _Answer], answer: "Future[_Answer]") -> None:
        try:
            answer.set_result(call(self._open()))
        except BaseException as error:  # raised again in the waiting thread
            answer.set_exception(error)

    def _open(self) -> Any:
        with self._opening:
            if self._connection is not None:
                try:
                    # Only the first call reveals that the daemon was restarted.
                    self._connection.getLibVersion()
                except self._libvirt.libvirtError as error:
                    LOG.warning("The connection to libvirt at %s was lost (%s); reconnecting", self._uri, error)
                    self._connection = None
            if self._connection is None:
                self._connection = self._libvirt.open(self._uri)
            return self._connection


_QUESTION = 30.0
"""Seconds for a query."""
_SHORT_QUESTION = 2.0
"""Seconds for a query while another call has no answer: an agent that polls each of its guests must finish."""
_WORK = 600.0
"""Seconds to start or end a guest: VFIO pins all of its memory, and devices are reset."""
_LOOK_AGAIN = 0.2


class LibvirtDriver:
    """Implement :class:`~autoclave.virt.driver.ComputeDriver`.

    Every guest is a persistent domain, validated against libvirt's schema when it is defined. Its uuid is that of the
    instance.

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

        found = self._connection.ask("query the host", "the host", ask, within=_QUESTION)
        return found.less_reserved(self._conf)

    def spawn(self, guest: GuestSpec) -> None:
        xml = self._describe(guest)

        def spawn(connection: Any) -> None:
            if self._find(connection, guest.uuid) is not None:
                raise GuestError(f"cannot start guest {guest.uuid}: it exists already")
            self._define(connection, xml).create()

        self._connection.ask(f"start guest {guest.uuid}", guest.uuid, spawn, within=_WORK)

    def destroy(self, uuid: str) -> None:
        def destroy(connection: Any) -> None:
            domain = self._find(connection, uuid)
            if domain is None:
                return
            self._end(domain)
            self._forget(domain)
            if self._find(connection, uuid) is not None:  # such as after an undefine of a running guest
                raise GuestError(f"libvirt still has guest {uuid} after it was destroyed and undefined")

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
            # Define first: a running guest continues unchanged if libvirt refuses the new definition.
            domain = self._define(connection, xml)
            self._end(domain)
            self._instances.remove_nvram(guest.uuid)  # they contain the boot order of the former system
            domain.create()

        self._connection.ask(f"rebuild guest {guest.uuid}", guest.uuid, rebuild, within=2 * _WORK)

    def state(self, uuid: str) -> PowerState | None:
        def ask(connection: Any) -> PowerState | None:
            domain = self._find(connection, uuid)
            return None if domain is None else self._state_of(domain)

        within = _SHORT_QUESTION if self._connection.owes else _QUESTION
        return self._connection.ask(f"query the state of guest {uuid}", uuid, ask, within=within)

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
            raise GuestError(f"libvirt has no guest {uuid}")
        return domain

    def _end(self, domain: Any) -> None:
        """Power the guest off; do nothing if it is off."""
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
        if self._domain_type is not DomainType.TEST:  # the test driver has neither of them, and refuses the flags
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
            LOG.warning("Guest %s could not be shut down (%s); its power is cut", domain.name(), error)
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
            return None  # it ended between the two calls
        if state == libvirt.VIR_DOMAIN_CRASHED:
            return PowerState.CRASHED
        if state == libvirt.VIR_DOMAIN_SHUTOFF:
            crashed = reason in (libvirt.VIR_DOMAIN_SHUTOFF_CRASHED, libvirt.VIR_DOMAIN_SHUTOFF_FAILED)
            return PowerState.CRASHED if crashed else PowerState.SHUTDOWN
        return PowerState.RUNNING
