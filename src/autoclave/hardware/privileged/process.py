"""``autoclave-privileged``: what ``[autoclave_privileged] helper_command`` starts as root.

It is oslo.privsep's ``privsep-helper`` for one context, and takes no other argument than where the
agent listens: privsep-helper also reads a configuration that its caller names, in a file or in the
environment, from which its caller could have code of his own run as root.
"""

import os
import sys

from oslo_privsep import daemon

from autoclave.hardware.privileged import context, server


def main() -> None:
    """Become the privileged process of the agent that asks for it."""
    match sys.argv[1:]:
        case ["--privsep_context", context.pypath, "--privsep_sock_path", path] if not path.startswith("-"):
            os.environ.clear()
            try:
                daemon.helper_main()
            finally:
                # The agent is gone. Their death signal would leave alive what they have started.
                server.end_all()
        case _:
            sys.exit("autoclave-privileged is started by the agent, see [autoclave_privileged] helper_command")
