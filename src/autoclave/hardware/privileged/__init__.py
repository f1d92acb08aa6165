"""What needs root, in a process of its own (oslo.privsep), for an agent that is an ordinary user.

The process trusts nothing that the agent says: it runs only the tools that it knows, with arguments
that it knows, from files that only root can change, and it opens nothing but NVMe block devices. It
does not know which drive is to be erased: that remains the agent's decision.
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
        "Management) from nobody without it.",
        "CAP_DAC_READ_SEARCH": "To list the open files of other users' programs, so that the error about a disk in "
        "use can name the program.",
        "CAP_SYS_PTRACE": "To see which device such an open file is.",
    }
)
"""What the helper and its tools may do beyond what uid 0 may do with files that root owns, and why."""

_KEPT = frozenset(capabilities.CAPS_BYNAME[name] for name in CAPABILITIES)
_THREADS = 64
"""Requests at a time. None takes longer than about a second, but for a kernel that does not answer."""
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24


class _Context(priv_context.PrivContext):  # type: ignore[misc]  # oslo.privsep comes without types
    """A context whose process also limits what the programs that it executes can have.

    A program executed by uid 0 gets every capability of the bounding set, whatever its parent had.
    """

    def start(self, method: priv_context.Method = priv_context.Method.ROOTWRAP) -> None:
        """Start the process, and see to it that nobody waits for answers of one that has died."""
        super().start(method)
        threading.Thread(target=wake_when_dead, args=(self.channel,), name="privsep-watch", daemon=True).start()

    def stop(self) -> None:
        """Let go of the process, also of one that has died."""
        with contextlib.suppress(OSError):
            super().stop()
        self.channel = None

    def set_client_mode(self, enabled: bool) -> None:
        """As its last step before it serves, the process says so that it is no client."""
        super().set_client_mode(enabled)
        if not enabled:
            os.umask(0o077)  # oslo.privsep has left it at 0
            _bound()


def wake_when_dead(channel: comm.ClientChannel) -> None:
    """Have all requests fail once nobody reads the answers any more.

    The channel does so itself at the end of a stream, but not when its connection is reset: that is what
    it sees of a process that died before it had read everything, and its requests would wait for ever.
    """
    channel.reader_thread.join()
    with channel.lock:
        for request in channel.outstanding_msgs.values():
            request.set_exception(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))
        channel.running = False


def _bound() -> None:
    """Give up for good, for this process and what it executes, all capabilities but :data:`CAPABILITIES`."""
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
    # The last one only until it has done its work in _bound().
    capabilities=[*_KEPT, capabilities.CAP_SETPCAP],
)
# Not the number of processors, as oslo.privsep has it: requests wait, they do not compute.
cfg.CONF.set_default("thread_pool_size", _THREADS, group=PRIVILEGED)


def entrypoint(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Have *function* run in the privileged process, whoever calls it."""
    return cast(Callable[_Parameters, _Result], context.entrypoint(function))
