"""The connection to libvirt: opened when it is needed, and never waited for without end."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from types import ModuleType
from typing import Any, TypeVar

from oslo_log import log as logging

from autoclave.exceptions import GuestError, InvalidConfiguration

LOG = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")


def libvirt_module() -> ModuleType:
    """libvirt-python, told to keep its errors off stderr: they are raised as well.

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
    """One connection for all threads of the agent.

    What is asked is done in a thread of its own, so that a libvirt or a QEMU that hangs does not hang the agent.
    Nothing more is asked about a guest while a question about it has no answer: a start that comes through late could
    otherwise follow its guest's end.

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
        """Whether libvirt still owes an answer that was given up."""
        return any(not answer.done() for _, answer in list(self._unanswered.values()))

    def ask(self, deed: str, about: str, call: Callable[[Any], _Answer], *, within: float) -> _Answer:
        """What *call* returns, which is given the open connection.

        :param deed: what it does, for the error: "could not …".
        :param about: the guest's uuid, or what else it is about.
        :param within: seconds to wait.
        :raises GuestError: libvirt refuses, is not there, or does not answer; with its own words.
        """
        earlier_deed, earlier = self._unanswered.get(about, ("", None))
        if earlier is not None:
            if not wait([earlier], within).done:
                raise GuestError(f"cannot {deed}: libvirt at {self._uri} has still not answered to: {earlier_deed}")
            self._unanswered.pop(about, None)
        answer: Future[_Answer] = Future()
        threading.Thread(target=self._run, args=(call, answer), name=f"libvirt: {deed}", daemon=True).start()
        if not wait([answer], within).done:
            self._unanswered[about] = deed, answer
            raise GuestError(
                f"cannot {deed}: libvirt at {self._uri} did not answer within {within:g} s; it may do it yet"
            )
        try:
            return answer.result()
        except self._libvirt.libvirtError as error:
            raise GuestError(f"cannot {deed}: {error}") from error

    def _run(self, call: Callable[[Any], _Answer], answer: "Future[_Answer]") -> None:
        try:
            answer.set_result(call(self._open()))
        except BaseException as error:  # whoever waits gets it
            answer.set_exception(error)

    def _open(self) -> Any:
        with self._opening:
            if self._connection is not None:
                try:
                    # A daemon that was restarted is noticed by the first question alone.
                    self._connection.getLibVersion()
                except self._libvirt.libvirtError as error:
                    LOG.warning("the connection to libvirt at %s is gone (%s); opening another", self._uri, error)
                    self._connection = None
            if self._connection is None:
                self._connection = self._libvirt.open(self._uri)
            return self._connection
