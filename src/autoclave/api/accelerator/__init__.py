"""The accelerator API as Cyborg's clients know it, microversions 2.0 to 2.5."""
