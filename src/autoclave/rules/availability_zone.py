"""Where hosts are, for clients that ask for it."""

ZONE = "nova"
"""The one availability zone, by the name that Nova gives its default one."""
