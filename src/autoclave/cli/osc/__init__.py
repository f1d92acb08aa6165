"""Commands for the ``openstack`` client, beside python-cyborgclient's own."""
