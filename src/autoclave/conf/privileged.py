"""Define [autoclave_privileged]: the root process of an agent that runs as an ordinary user."""

from oslo_config import cfg

GROUP = "autoclave_privileged"

OPTS = [
    cfg.StrOpt(
        "helper_command",
        default="",
        help="The command that starts the privileged helper as root, such as sudo -n "
        "/opt/autoclave/bin/autoclave-privileged; two arguments are added to it. Empty: the agent does everything "
        "itself, for which it must be root.",
    ),
]
