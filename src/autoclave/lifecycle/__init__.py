"""The only code that changes a device's state, or ``reserved`` in Placement."""
