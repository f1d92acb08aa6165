"""Decisions that need the database and Placement. Any number of conductors may run."""
