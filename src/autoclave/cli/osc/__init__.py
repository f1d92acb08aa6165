"""Commands for the ``openstack`` client."""
