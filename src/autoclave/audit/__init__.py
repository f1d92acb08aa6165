"""Compare the database, Placement and the hosts for each device (``autoclave audit``)."""
