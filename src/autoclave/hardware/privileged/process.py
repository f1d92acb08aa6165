"""Run ``autoclave-privileged``, which ``[autoclave_privileged] helper_command`` starts as root.

It is oslo.privsep's ``privsep-helper`` for one context, and its only argument is the agent's socket. privsep-helper
also reads a configuration that its caller chooses, by which the caller could run arbitrary code as root.
"""

import os
import sys

from oslo_privsep import daemon

from autoclave.hardware.privileged import context, server


def main() -> None:
    """Become the privileged process of the agent that starts it."""
    match sys.argv[1:]:
        case ["--privsep_context", context.pypath, "--privsep_sock_path", path] if not path.startswith("-"):
            os.environ.clear()
            try:
                daemon.helper_main()
            finally:
                # The agent is gone. The death signal of the tools would not reach their children.
                server.end_all()
        case _:
            sys.exit("autoclave-privileged is started by the agent, see [autoclave_privileged] helper_command")
