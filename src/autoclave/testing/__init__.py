"""Doubles of the services around Autoclave and of its ports, for tests: ours, and those of drivers of other vendors.

No service, command or simulator imports this package.
"""
