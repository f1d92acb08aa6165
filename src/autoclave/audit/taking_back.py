"""Taking functions back from instances that are not there, once the host has said that no guest has them."""

from collections.abc import Mapping, Sequence

from autoclave.audit.hosts import HostView
from autoclave.db.engine import Database
from autoclave.exceptions import Conflict, HardwareError, PlacementError
from autoclave.lifecycle.burn import settle_provider
from autoclave.lifecycle.reclaim import TakenBack, on_record, take_back
from autoclave.lifecycle.transitions import Cause
from autoclave.placement.client import PlacementClient
from autoclave.rules.audit.model import Guest


class TakingBack:
    """Takes functions of hosts back.

    :param hosts: those that can be asked from here.
    """

    def __init__(self, db: Database, placement: PlacementClient, hosts: Sequence[HostView]) -> None:
        self._db = db
        self._placement = placement
        self._hosts = {host.name: host for host in hosts}

    def take_back(self, host: str, addresses: Sequence[str], cause: Cause, *, looked: bool) -> dict[str, str]:
        """Take functions of one host back, all or none; what was done, in words, by address. May be done again.

        :param looked: the operator has seen that no guest has them: a host that cannot be asked is no hindrance.
        :raises NotFound: the host has no such function on record.
        :raises Conflict: a guest has one, the host cannot be asked, or an instance has one that is there.
        """
        with self._db.read() as tx:
            on_record(tx, host, addresses)
        guests = self._guests(host, looked=looked)
        for address in addresses:
            for guest in guests.get(address, ()):
                raise Conflict(
                    f"{address} of {host} is with domain {guest.name} ({guest.uuid}), which "
                    f"{'runs' if guest.running else 'is off'}: end and undefine that, or take the function away from it"
                )
        return {each.address: self._told(each) for each in take_back(self._db, host, addresses, cause)}

    def _guests(self, host: str, *, looked: bool) -> Mapping[str, Sequence[Guest]]:
        view, why = self._hosts.get(host), "it is another machine"
        try:
            guests = None if view is None else view.guests()
        except HardwareError as error:
            guests, why = None, str(error)
        else:
            why = why if view is None else "there is no virsh"
        if guests is None and not looked:
            raise Conflict(
                f"the guests of {host} cannot be asked for from here ({why}): run this on {host} with its agent's "
                "configuration; or look there yourself (`virsh list --all --uuid`, `virsh dumpxml`), and say --looked"
            )
        return guests or {}

    def _told(self, taken: TakenBack) -> str:
        provider = taken.provider
        what = "no instance has it" if taken.instance_uuid is None else f"taken back from {taken.instance_uuid}"
        if provider.burned:
            what += "; it stays burned until it is released"
        try:
            settle_provider(self._db, self._placement, provider.uuid)
        except PlacementError as error:
            what += f"; Placement will be told later: {error}"
        return what
