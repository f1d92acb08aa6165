"""Define the options of Placement (``[placement]``) and of Nova (``[nova]``). Most are those of keystoneauth1."""

from oslo_config import cfg

from autoclave.conf.keystoneauth import service_options
from autoclave.conf.option_types import DAY, HTTPURL, FiniteFloatOpt

PLACEMENT = "placement"

PLACEMENT_OPTS = service_options(
    "placement",
    "Not set: the embedded Placement of `autoclave up`.",
    [
        cfg.Opt(
            "endpoint",
            type=HTTPURL(),
            deprecated_for_removal=True,
            deprecated_reason="Set auth_type and endpoint_override, or leave the URL to the catalog.",
            help="URL of an external Placement. Without auth_type, requests carry the static token `token`, which is "
            "`admin` by default. With auth_type = password, the project is `service` and both domains are `Default`, "
            "unless set.",
        ),
        FiniteFloatOpt("timeout", default=30.0, min=0.1, help="Seconds to wait for a connection and for data."),
        cfg.BoolOpt(
            "create_root_provider",
            default=False,
            help="Create this host's root provider if Placement lacks it. Leave off where nova-compute creates it.",
        ),
    ],
)

_DOMAIN = ("default_domain_id", "default_domain_name")
_SCOPE = ("project_id", "project_name", "domain_id", "domain_name", "system_scope", "trust_id")


def is_external(conf: cfg.ConfigOpts) -> bool:
    """Return whether ``[placement]`` names a Placement; without one, ``autoclave up`` embeds its own."""
    group = conf[PLACEMENT]
    return bool(group.auth_type or group.auth_section or group.endpoint_override or group.endpoint)


def present_form(conf: cfg.ConfigOpts) -> dict[str, str]:
    """Return the options that say what a file with the deprecated ``endpoint`` means; none without it."""
    group = conf[PLACEMENT]
    if not group.endpoint or group.endpoint_override or group.auth_section:
        return {}
    found: dict[str, str] = {}
    if group.auth_type in (None, "token"):  # before keystoneauth's plugin `token`, which asks Keystone
        found["auth_type"] = "admin_token"
        if not group.token:
            found["token"] = "admin"  # noqa: S105 - its old default, which is no secret
    elif group.auth_type == "password":
        if not any(group[option] for option in _SCOPE):
            found["project_name"] = "service"
        if not any(group[option] for option in ("user_id", "user_domain_id", "user_domain_name", *_DOMAIN)):
            found["user_domain_name"] = "Default"
        by_name = group.project_name or "project_name" in found
        if by_name and not any(group[option] for option in ("project_domain_id", "project_domain_name", *_DOMAIN)):
            found["project_domain_name"] = "Default"
    return {"endpoint_override": group.endpoint, **found}


NOVA = "nova"

NOVA_OPTS = service_options(
    "compute",
    "Not set: Autoclave notifies no Nova.",
    [
        FiniteFloatOpt(
            "timeout", default=10.0, min=0.1, max=60.0, help="Seconds to wait for a connection and for data."
        ),
        cfg.IntOpt(
            "arq_binding_timeout",
            default=300,
            min=1,
            max=DAY,
            help="Seconds after which a conductor gives up an event that Nova has not accepted. Set it to the value "
            "of Nova's own option of this name: Nova waits no longer.",
        ),
        cfg.IntOpt(
            "orphan_patience",
            default=600,
            min=0,
            max=DAY,
            help="Minimum seconds between the two lookups that must find a server deleted before a conductor "
            "reclaims its devices. Conductors look twice as often. 0: conductors never look, and only an "
            "operator reclaims devices.",
        ),
    ],
)
