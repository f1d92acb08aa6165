"""[placement]: the inventory ledger."""

from oslo_config import cfg

from autoclave.conf.numbers import FiniteFloatOpt

GROUP = "placement"

OPTS = [
    cfg.StrOpt(
        "endpoint",
        regex=r"^(https?://[^/\s]+.*)?$",
        help="URL of an external Placement. Empty: the embedded one of `autoclave up`.",
    ),
    cfg.StrOpt("auth_type", default="token", choices=["token", "password", "none"], help="How to authenticate there."),
    cfg.StrOpt("token", default="admin", secret=True, help="Static token, for auth_type = token."),
    cfg.StrOpt("auth_url", help="Keystone, for auth_type = password."),
    cfg.StrOpt("username", help="Service user, for auth_type = password."),
    cfg.StrOpt("password", secret=True, help="Its password."),
    cfg.StrOpt("project_name", default="service", help="Its project."),
    cfg.StrOpt("user_domain_name", default="Default", help="The user's domain."),
    cfg.StrOpt("project_domain_name", default="Default", help="The project's domain."),
    cfg.StrOpt("cafile", help="File of the certificates that vouch for Placement and Keystone. Default: the system's."),
    cfg.BoolOpt("insecure", default=False, help="Do not check the certificates of Placement and Keystone."),
    FiniteFloatOpt("timeout", default=30.0, min=0.1, help="Seconds to wait for an answer."),
    cfg.BoolOpt(
        "create_root_provider",
        default=False,
        help="Make this host's root provider if nobody else does. Off where nova-compute makes it.",
    ),
]
