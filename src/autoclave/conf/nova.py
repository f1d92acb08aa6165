"""Define [nova]: the compute service to notify and to query. All options but three are keystoneauth's."""

from oslo_config import cfg

from autoclave.conf.keystoneauth import service_options
from autoclave.conf.numbers import DAY, FiniteFloatOpt

GROUP = "nova"

OPTS = service_options(
    "compute",
    "Not set: there is no Nova to notify.",
    [
        FiniteFloatOpt(
            "timeout", default=10.0, min=0.1, max=60.0, help="Seconds to wait for a connection, and for data."
        ),
        cfg.IntOpt(
            "arq_binding_timeout",
            default=300,
            min=1,
            max=DAY,
            help="Seconds after which an event that Nova has not taken is given up: what Nova's own option of this "
            "name says, since it waits no longer.",
        ),
        cfg.IntOpt(
            "orphan_patience",
            default=600,
            min=0,
            max=DAY,
            help="Seconds between the two lookups that must find a server deleted before a conductor gives its devices "
            "back by itself. Conductors look twice as often. 0: they never look, and only an operator takes devices "
            "back.",
        ),
    ],
)
