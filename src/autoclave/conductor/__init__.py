"""Decide what needs the database and Placement. Any number of conductors may run."""
