"""The port to OpenStack Placement, the ledger of what is offered: client, embedded service, double."""
