"""Access OpenStack Placement, which records what is offered: its client and the embedded service."""
