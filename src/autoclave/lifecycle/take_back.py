"""Taking a PCI function back from an instance that is not there: deleted by hand, say, or on another host.

What an instance has is given back by the agent of its host when it is deleted. Here nobody will ever do that, so that
an operator must, who has seen to it that no guest has the function.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.engine import Connection

from autoclave.db import instances as instance_rows
from autoclave.db import pci
from autoclave.db.columns import utcnow
from autoclave.db.engine import Database
from autoclave.db.pci import FunctionRecord, ProviderRecord
from autoclave.exceptions import Conflict, NotFound
from autoclave.lifecycle.burn_moves import move
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.burn import BurnEvent
from autoclave.rules.instance_states import UNSETTLED


@dataclass(frozen=True)
class TakenBack:
    """What became of a function.

    :param instance_uuid: who had it; None: nobody, and nothing was done.
    :param provider: as it is now.
    """

    address: str
    instance_uuid: str | None
    provider: ProviderRecord


def take_back(db: Database, host: str, addresses: Sequence[str], cause: Cause) -> list[TakenBack]:
    """Take functions of one host back, all of them or none, each with a line in its provider's history.

    What is or must be burned is left burned and unconfirmed: from the same moment on no instance may claim it, whatever
    Placement says, until it was seen idle and reserved and was released. Settle the providers afterwards.

    :raises NotFound: the host has no such function on record.
    :raises Conflict: an instance has it that is on the host, or that is being built or deleted.
    """

    def work(tx: Connection) -> list[TakenBack]:
        owned = {each.id: each for each in pci.providers(tx, host, lock=True)}
        taken = []
        for address, function in on_record(tx, host, addresses).items():
            before = owned[function.provider_id]
            if function.instance_uuid is not None:
                _require_not_there(tx, function, function.instance_uuid)
                owned[before.id] = _take(tx, before, function, function.instance_uuid, cause)
            taken.append((address, function.instance_uuid, before.id))
        return [TakenBack(address, instance, owned[provider]) for address, instance, provider in taken]

    return db.transact(work)


def on_record(tx: Connection, host: str, addresses: Sequence[str]) -> dict[str, FunctionRecord]:
    """Functions of one host by their addresses.

    :raises NotFound: the host has no such function on record.
    """
    known = {each.address: each for each in pci.functions(tx, host)}
    for address in addresses:
        if address not in known:
            raise NotFound(f"{host} has no PCI function {address} for instances on record.")
    return {address: known[address] for address in addresses}


def _require_not_there(tx: Connection, function: FunctionRecord, instance_uuid: str) -> None:
    instance = instance_rows.get(tx, instance_uuid, lock=True)
    if instance is None:
        return
    if instance.task_state in UNSETTLED:
        raise Conflict(
            f"{function.address} of {function.hostname} is instance {instance_uuid}'s, which is {instance.task_state}: "
            "wait until that is over."
        )
    if instance.host == function.hostname:
        raise Conflict(
            f"{function.address} of {function.hostname} is instance {instance_uuid}'s, which is on that host: delete "
            "the instance, and its agent takes the function back."
        )


def _take(
    tx: Connection, provider: ProviderRecord, function: FunctionRecord, instance_uuid: str, cause: Cause
) -> ProviderRecord:
    values: Mapping[str, Any] = {}
    if provider.burned:
        # A release, and what was seen idle, came before this use of it.
        values = {"burn_confirmed": False, "release_pending": False}
    elif provider.one_time_use:
        values = pci.burned_for(instance_uuid, utcnow())
    why = f"taken back from instance {instance_uuid}" + (f": {cause.reason}" if cause.reason else "")
    told = replace(cause, reason=why, evidence={"function": function.address, "instance": instance_uuid})
    if not pci.take_back(tx, function) or not move(tx, provider, BurnEvent.TAKE_BACK, told, values):
        raise Conflict(f"{function.address} of {function.hostname} was changed at the same moment.")
    return replace(provider, state_version=provider.state_version + 1, **values)
