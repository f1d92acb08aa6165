"""Comparing what the database, Placement and the hosts say of each device (``autoclave audit``)."""
