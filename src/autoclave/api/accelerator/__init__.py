"""Serve the accelerator API of Cyborg, microversions 2.0 to 2.5."""
