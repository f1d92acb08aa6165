"""Run what needs root in a separate process (oslo.privsep), for an agent without privileges.

The process does not trust the agent. It runs only known tools with known arguments, from files that only root can
change. It opens only NVMe block devices. The agent still decides which drive to erase.
"""

import contextlib
import ctypes
import errno
import os
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import ParamSpec, TypeVar, cast

from oslo_config import cfg
from oslo_privsep import capabilities, comm, priv_context

from autoclave.conf.agent import PRIVILEGED
from autoclave.exceptions import HardwareError

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

CAPABILITIES: Mapping[str, str] = MappingProxyType(
    {
        "CAP_SYS_ADMIN": "The kernel takes NVMe admin commands (Identify, log pages, Sanitize, Format NVM, Namespace "
        "Management) only with it.",
        "CAP_DAC_READ_SEARCH": "To list the open files of other users' programs, so that the error about a disk in "
        "use can name the program.",
        "CAP_SYS_PTRACE": "To identify the device of such an open file.",
    }
)
"""The capabilities of the helper and its tools beyond those of uid 0 on files of root, with the reason."""

_KEPT = frozenset(capabilities.CAPS_BYNAME[name] for name in CAPABILITIES)
_THREADS = 64
"""The most concurrent requests. None takes longer than about a second, unless the kernel does not answer."""
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24


class _Context(priv_context.PrivContext):  # type: ignore[misc]  # oslo.privsep comes without types
    """Limit the capabilities of the programs that the process executes.

    A program executed by uid 0 gets every capability of the bounding set, whatever its parent had.
    """

    def start(self, method: priv_context.Method = priv_context.Method.ROOTWRAP) -> None:
        """Start the process, and ensure that no request waits for one that has died."""
        super().start(method)
        threading.Thread(target=wake_when_dead, args=(self.channel,), name="privsep-watch", daemon=True).start()

    def stop(self) -> None:
        """Disconnect from the process, even if it has died."""
        with contextlib.suppress(OSError):
            super().stop()
        self.channel = None

    def set_client_mode(self, enabled: bool) -> None:
        """Limit the process in its last step before it serves: the switch out of client mode."""
        super().set_client_mode(enabled)
        if not enabled:
            os.umask(0o077)  # oslo.privsep has left it at 0
            _bound()


def wake_when_dead(channel: comm.ClientChannel) -> None:
    """Fail all outstanding requests after the channel's reader has ended.

    The channel does so itself at the end of a stream, but not after a reset of its connection. A process that dies
    before it has read everything causes a reset, and requests would wait forever.
    """
    channel.reader_thread.join()
    with channel.lock:
        for request in channel.outstanding_msgs.values():
            request.set_exception(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))
        channel.running = False


def _bound() -> None:
    """Drop all but :data:`CAPABILITIES` permanently, for this process and all programs that it executes."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    capability = 0
    while (held := prctl(_PR_CAPBSET_READ, capability, 0, 0, 0)) >= 0:
        if held and capability not in _KEPT and prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            reason = os.strerror(ctypes.get_errno())
            raise HardwareError(f"the privileged helper cannot limit its capabilities for good: {reason}")
        capability += 1
    _, permitted, _ = capabilities.get_caps()
    kept = _KEPT.intersection(permitted)
    capabilities.drop_all_caps_except(kept, kept, ())


context = _Context(
    __name__,
    cfg_section=PRIVILEGED,
    pypath=f"{__name__}.context",
    # CAP_SETPCAP only until _bound() has run.
    capabilities=[*_KEPT, capabilities.CAP_SETPCAP],
)
# oslo.privsep uses the number of processors, but requests wait rather than compute.
cfg.CONF.set_default("thread_pool_size", _THREADS, group=PRIVILEGED)


def entrypoint(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Make *function* run in the privileged process for every caller."""
    return cast(Callable[_Parameters, _Result], context.entrypoint(function))
