"""Exchange messages between services: one port, and its two transports."""

import autoclave.objects  # noqa: F401 - selects the threading backend before oslo.messaging selects another
