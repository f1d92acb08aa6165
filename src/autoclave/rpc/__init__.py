"""Messages between services: one port, and the two transports behind it."""

import autoclave.objects  # noqa: F401 - selects the threading backend before oslo.messaging selects another
