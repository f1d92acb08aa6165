"""Define [upgrade_levels]: the RPC versions to send while services of two releases run (as in Nova)."""

from oslo_config import cfg

GROUP = "upgrade_levels"

_VERSION = r"^1\.\d+$"

OPTS = [
    cfg.StrOpt(
        "agent",
        regex=_VERSION,
        help="Highest version of RPC that is sent to agents, such as 1.0. Unset: what each agent says that it speaks, "
        "which is right also during an upgrade.",
    ),
    cfg.StrOpt(
        "conductor",
        regex=_VERSION,
        help="Highest version of RPC that is sent to conductors. Unset: what this release speaks. Set it on an api "
        "service that is newer than a conductor.",
    ),
]
