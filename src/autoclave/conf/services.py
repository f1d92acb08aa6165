"""Define the options of the api service, the conductors, the database and the broker.

The groups are ``[api]``, ``[conductor]``, ``[database]``, ``[notifications]``, and ``[upgrade_levels]`` as in Nova: the
RPC versions to send while services of two releases run side by side.
"""

from oslo_config import cfg

from autoclave.conf.option_types import DAY, HTTPURL, FiniteFloatOpt

API = "api"

API_OPTS = [
    cfg.HostAddressOpt("host_ip", default="127.0.0.1", help="Address to listen on."),
    cfg.PortOpt("port", default=6666, help="Port to listen on."),
    cfg.IntOpt("threads", default=16, min=1, max=1024, help="Worker threads."),
    cfg.IntOpt(
        "max_waiting_requests",
        default=48,
        min=1,
        max=1024,
        help="Requests that may wait for Placement or a conductor at a time, such as binds. Each has a worker thread "
        "in addition to [api] threads, so that all others are answered. More are answered 503 with Retry-After.",
    ),
    cfg.Opt(
        "public_endpoint",
        type=HTTPURL(),
        help="URL that links are built from, instead of the one the caller used. Under noauth, requests to its host "
        "are answered beside those to a loopback address.",
    ),
    cfg.IntOpt("max_request_body_size", default=114688, min=1024, max=2**30, help="Bytes a request body may have."),
    cfg.StrOpt(
        "auth_strategy",
        default="keystone",
        choices=["keystone", "http_basic", "noauth"],
        help="keystone: tokens are checked by keystonemiddleware. http_basic: whoever gives a name and a password of "
        "http_basic_auth_user_file is an administrator. noauth: every caller is one; only for one machine.",
    ),
    cfg.StrOpt(
        "http_basic_auth_user_file",
        default="/etc/autoclave/htpasswd",
        help="Users and their passwords for auth_strategy = http_basic, as `htpasswd -B` writes them: a line "
        "name:bcrypt-hash for each. The file is read again when it changes.",
    ),
    cfg.BoolOpt(
        "public_metrics",
        default=False,
        help="Serve /metrics to whoever asks, as Prometheus has no token of Keystone's. It tells the names of the "
        "hosts, and how many devices of each are in which state.",
    ),
    cfg.BoolOpt(
        "noauth_beyond_loopback",
        default=False,
        help="Let auth_strategy = noauth listen on an address that is not a loopback one: whoever can connect may do "
        "everything, also from other machines.",
    ),
]

CONDUCTOR = "conductor"

CONDUCTOR_OPTS = [
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

DATABASE = "database"

DATABASE_OPTS = [
    cfg.StrOpt(
        "connection",
        secret=True,
        help="SQLAlchemy URL: sqlite:////path, postgresql+psycopg://… or mysql+pymysql://….",
    ),
    cfg.IntOpt(
        "timeout",
        default=30,
        min=1,
        max=DAY,
        help="Seconds that one statement, and the locks it waits for, may take on PostgreSQL or MariaDB; then the "
        "request is answered 503, or the periodic task is repeated. `autoclave db sync` takes as long as it must.",
    ),
]

NOTIFICATIONS = "notifications"

NOTIFICATIONS_OPTS = [
    cfg.ListOpt(
        "versioned_notifications_topics",
        default=["versioned_notifications"],
        help="The topics on which others are told of instances, if there is a [DEFAULT] transport_url; the option has "
        "this name in Nova. Empty: nobody is told. Each topic is a queue that must have a listener, or it grows.",
    ),
]

UPGRADE_LEVELS = "upgrade_levels"

_RPC_VERSION = r"^1\.\d+$"

UPGRADE_LEVELS_OPTS = [
    cfg.StrOpt(
        "agent",
        regex=_RPC_VERSION,
        help="Highest version of RPC that is sent to agents, such as 1.0. Unset: what each agent says that it speaks, "
        "which is right also during an upgrade.",
    ),
    cfg.StrOpt(
        "conductor",
        regex=_RPC_VERSION,
        help="Highest version of RPC that is sent to conductors. Unset: what this release speaks. Set it on an api "
        "service that is newer than a conductor.",
    ),
]
