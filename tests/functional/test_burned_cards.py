"""A burned card stays burned in another slot and on another host, as long as its serial tells it from others."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import hostworld
import pytest
from hostworld import GPU, HOST, HostWorld

import burnedrows
from autoclave.db import history, pci
from autoclave.db.engine import Database
from autoclave.simulator.functions import FunctionSpec
from autoclave.testing.placement import FakePlacement
from burnedrows import OPERATOR, OneTimeUse, ask_release
from dbfixtures import sqlite_database

SLOT = "0000:91:00.0"
OTHER_HOST = "host-2"
CARD = FunctionSpec(GPU, "10de", "25b6", serial="00e04c0000123456")
SPARE = FunctionSpec(SLOT, "10de", "25b6", serial="00e04c0000999999")
SPARE2 = replace(SPARE, address="0000:92:00.0")


class Site:
    """A host with a burned card; ``cards`` burns and releases."""

    def __init__(self, tmp_path: Path, card: FunctionSpec) -> None:
        self.service = FakePlacement()
        self.db: Database = sqlite_database(tmp_path)
        self.card = card
        self.world = HostWorld(tmp_path, (card,), service=self.service, db=self.db)
        self.world.synced()
        self.cards = OneTimeUse(self.db, self.world.onlooker, HOST)
        self.instance = self.cards.use_up(self.world.provider().uuid)
        assert self.world.offered() == 0

    def move(self, address: str = SLOT, world: HostWorld | None = None, serial: str | None = "same") -> None:
        """Put the card into another slot, and let the agents look."""
        self.world.sim.functions.pull(GPU)
        self.world.synced()
        moved = replace(self.card, address=address)
        (world or self.world).sim.functions.plug(moved if serial == "same" else replace(moved, serial=serial))
        if world is None:
            self.world.synced()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, CARD)
    yield made
    made.world.close()


def test_a_burned_card_stays_burned_in_another_slot(site: Site) -> None:
    site.move()
    row = site.world.row(SLOT)
    assert (row.burned, row.device.burned_for, site.world.offered(SLOT)) == (True, site.instance, 0)
    with site.db.read() as tx:
        [event] = [each for each in history.history(tx, row.uuid) if each.event == "burn"]
    assert f"was burned in slot {GPU} of host {HOST}" in (event.reason or "")
    ask_release(site.db, site.world.onlooker, row.uuid, OPERATOR)
    assert site.world.offered(SLOT) == 1
    assert site.world.row(GPU).burned, "what is in its former slot is not known"


def test_a_burned_card_stays_burned_on_another_host(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its former host is down, and has not seen it leave."""
    monkeypatch.setattr(hostworld, "HOST", OTHER_HOST)
    other = HostWorld(tmp_path / "other", (replace(CARD, address=SLOT), SPARE2), service=site.service, db=site.db)
    other.synced()
    assert (other.row(SLOT).burned, other.offered(SLOT)) == (True, 0)
    assert (other.row(SPARE2.address).burned, other.offered(SPARE2.address)) == (False, 1)


def test_a_burned_card_in_the_slot_of_another_is_burned(site: Site) -> None:
    site.world.sim.functions.plug(SPARE)
    site.world.synced()
    assert site.world.offered(SLOT) == 1
    site.world.sim.functions.pull(SLOT)
    site.move()
    assert (site.world.row(SLOT).burned, site.world.offered(SLOT)) == (True, 0)


def test_a_release_covers_only_the_card_in_the_slot(site: Site) -> None:
    """The burned card lies in a drawer while another is cleaned and released in its slot."""
    site.world.sim.functions.pull(GPU)
    site.world.sim.functions.plug(replace(SPARE, address=GPU))
    site.world.synced()
    ask_release(site.db, site.world.onlooker, site.world.row().uuid, OPERATOR)
    assert site.world.offered() == 1
    site.world.sim.functions.plug(replace(CARD, address=SLOT))
    site.world.synced()
    assert (site.world.row(SLOT).burned, site.world.offered(SLOT), site.world.offered()) == (True, 0, 1)


def test_a_released_card_is_clean_in_every_slot(site: Site) -> None:
    ask_release(site.db, site.world.onlooker, site.world.row().uuid, OPERATOR)
    site.move()
    assert (site.world.row(SLOT).burned, site.world.offered(SLOT)) == (False, 1)


def test_a_card_that_is_released_while_it_is_away_is_clean(site: Site) -> None:
    row = site.world.row()
    site.world.sim.functions.pull(GPU)
    site.world.synced()
    ask_release(site.db, site.world.onlooker, row.uuid, OPERATOR)
    site.world.synced()
    assert site.world.find_row() is None
    with site.db.read() as tx:
        assert pci.noted_by(tx, row.serial or "") is None
    site.world.sim.functions.plug(replace(CARD, address=SLOT))
    site.world.synced()
    assert site.world.offered(SLOT) == 1


@pytest.mark.parametrize("serial", [None, "0" * 16, "f" * 16])
def test_a_serial_that_says_nothing_burns_no_card(tmp_path: Path, serial: str | None) -> None:
    site = Site(tmp_path, replace(CARD, serial=serial))
    site.move()
    assert site.world.offered(SLOT) == 1
    site.world.close()


def test_a_serial_that_cards_share_burns_no_card(tmp_path: Path) -> None:
    site = Site(tmp_path, CARD)
    site.world.sim.functions.plug(replace(CARD, address=SLOT))
    site.world.synced()
    assert (site.world.offered(SLOT), site.world.offered()) == (1, 0)
    site.world.close()


def test_a_burn_from_before_serials_is_known_by_the_serial(site: Site) -> None:
    """As an upgrade leaves it: the row is burned, and nothing says which card that is."""
    with site.db.write() as tx:
        row = site.world.row()
        pci.remove(tx, row.serial or "", row.uuid)
        burnedrows.describe(tx, row, {"serial": None})
    site.world.synced()
    site.move()
    assert (site.world.row(SLOT).burned, site.world.offered(SLOT)) == (True, 0)
