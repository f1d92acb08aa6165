"""The states of an accelerator request (ARQ), and what may follow what."""

from enum import StrEnum


class ARQState(StrEnum):
    """Cyborg's ARQ states."""

    INITIAL = "Initial"
    """Created; asks for a device, has none."""
    BIND_STARTED = "BindStarted"
    """A conductor works on the bind; its lease says until when it may."""
    BOUND = "Bound"
    """The device is the instance's."""
    BIND_FAILED = "BindFailed"
    """The bind was refused, or taken back."""
    UNBOUND = "Unbound"
    """The device was given back; the request may be bound again."""
    DELETING = "Deleting"
    """A conductor works on the unbind; a lease says until when it may."""


ACTIVE = frozenset({ARQState.BIND_STARTED, ARQState.BOUND, ARQState.DELETING})
"""An ARQ in one of these holds the device and the handle that it is linked to."""

RESOLVED = frozenset({ARQState.BOUND, ARQState.BIND_FAILED, ARQState.DELETING})
"""What ``bind_state=resolved`` means to Nova: the outcome of the bind is known."""

BINDABLE = frozenset({ARQState.INITIAL, ARQState.UNBOUND})
"""States from which a bind may start."""
