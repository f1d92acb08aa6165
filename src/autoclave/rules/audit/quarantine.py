"""What the database proves after a backup of it was restored (``autoclave audit --quarantine``).

A restored database is true of the moment when it was copied. What has happened since then it does not know: a drive
that was available may have been bound and written to; a bind that was being made may have been completed; an unbind
may have been followed by an erase and by the next guest. None of the other records is a proof either. Placement may
have been restored from the same moment, and ``reserved`` may be written by anybody. The drive's own sanitize log tells
of the last sanitize, not of what was written after it; that it does so on some drives (the bit "global data erased"),
on their own host, while no guest has them, is no ground for a whole fleet.

So of a type that is erased between instances nothing that the system would use by itself is proved: neither what is
available, nor what is allocated unless a request that is Bound has it. What a request has in BindStarted would be
offered when the sweep takes the bind back. What one has in Deleting, or none has, would be erased without anybody's
word, and by now it may be the drive of a guest that is switched off. What waits in error, or for a worker, is offered
only after an erase that is proved and that an operator asked for (at its start the agent puts what a worker had into
error).

A type that is never erased has no cleanliness to be proved. One that is allocated and that no request in Bound has
goes to error as well: it may be with another guest.
"""

from autoclave.rules.arq_states import ARQState
from autoclave.rules.audit.facts import Row
from autoclave.rules.device_lifecycle import DeviceState


def unproved(row: Row) -> str | None:
    """Why a device must not be used on the word of a restored database, or None."""
    state = row.offer.device_state
    linked = [hold for hold in row.holds if hold.linked]
    if state is DeviceState.AVAILABLE and row.cleaned:
        return "available when the backup was made; nobody knows who has had it since"
    if state is not DeviceState.ALLOCATED or any(hold.state is ARQState.BOUND for hold in linked):
        return None
    if linked:
        return f"request {linked[0].arq} was {linked[0].state} when the backup was made; nobody knows what came of it"
    return "allocated when the backup was made, and no request had it; nobody knows who has had it since"
