"""Autoclave: the whole life of the PCI devices that hosts pass through to virtual machines.

eventlet is shut out before anything of oslo can import it: oslo.service, futurist and
oslo.privsep pick it up merely because it is installed, and our services are threaded.
"""

import sys

sys.modules.setdefault("eventlet", None)  # type: ignore[arg-type]
