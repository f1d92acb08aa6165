"""Double Autoclave's ports and the services around it, for its own tests and those of vendors' drivers.

No service, command or simulator imports this package.
"""
