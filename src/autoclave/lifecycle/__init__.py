"""Change device states and ``reserved`` in Placement; no other package does."""
