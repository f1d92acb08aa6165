"""Extend the ``openstack`` client."""
