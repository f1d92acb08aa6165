"""Record which changes of a PCI provider wait until its functions are free."""

import sqlalchemy as sa

from autoclave.db.migrations.steps import add_column

revision = "0010_pci_waiting"
down_revision = "0009_unreadable_devices"


def upgrade() -> None:
    add_column("pci_providers", sa.Column("waiting_for", sa.Text))
