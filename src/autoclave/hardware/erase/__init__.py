"""Erase NVMe drives, and prove it: one method for each action, registered in :mod:`.methods`."""
