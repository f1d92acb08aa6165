"""[nova]: the compute service to notify and to ask. All options but three are keystoneauth's."""

from keystoneauth1 import loading
from oslo_config import cfg

from autoclave.conf.numbers import DAY, FiniteFloatOpt

GROUP = "nova"

AUTH_TYPES = ("password", "v3applicationcredential", "admin_token", "none")


def _keystoneauth() -> list[cfg.Opt]:
    """keystoneauth's options, without the ones that are ours, and by their present names only."""
    found: dict[str, cfg.Opt] = {}
    for option in (
        *(option for auth_type in AUTH_TYPES for option in loading.get_auth_plugin_conf_options(auth_type)),
        *loading.get_adapter_conf_options(include_deprecated=False),
        *loading.get_session_conf_options(),
    ):
        option.deprecated_opts = []
        option.required = False  # of one auth_type, not of all
        found.setdefault(option.dest, option)
    del found["timeout"]
    cfg.set_defaults(list(found.values()), service_type="compute", valid_interfaces=["internal", "public"])
    return list(found.values())


OPTS = [
    cfg.StrOpt(
        "auth_type",
        choices=AUTH_TYPES,
        help="How to authenticate at Nova. Not set: there is no Nova, or it is not told.",
    ),
    FiniteFloatOpt("timeout", default=10.0, min=0.1, max=60.0, help="Seconds to wait for a connection, and for data."),
    cfg.IntOpt(
        "arq_binding_timeout",
        default=300,
        min=1,
        max=DAY,
        help="Seconds after which an event that Nova has not taken is given up: what Nova's own option of this name "
        "says, since it waits no longer.",
    ),
    cfg.IntOpt(
        "orphan_patience",
        default=600,
        min=0,
        max=DAY,
        help="Seconds between the two lookups that must find a server deleted before a conductor gives its devices "
        "back by itself. Conductors look twice as often. 0: they never look, and only an operator takes devices back.",
    ),
    *_keystoneauth(),
]
