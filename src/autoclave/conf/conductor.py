"""Define [conductor]: binds, builds and sweeps."""

from oslo_config import cfg

from autoclave.conf.numbers import DAY, FiniteFloatOpt

GROUP = "conductor"

OPTS = [
    cfg.IntOpt(
        "bind_lease",
        default=240,
        min=1,
        max=299,
        help="Seconds after which an unfinished bind or unbind is taken over by any conductor. Below 300, Nova's "
        "own patience.",
    ),
    FiniteFloatOpt("sweep_interval", default=15.0, min=0.1, help="Seconds between two sweeps for unfinished work."),
    cfg.IntOpt("rpc_timeout", default=60, min=1, max=DAY, help="Seconds to wait for an answer over RPC."),
]
