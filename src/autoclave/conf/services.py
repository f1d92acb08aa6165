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
        help="Maximum number of requests, such as binds, that wait for Placement or a conductor at the same time. "
        "Each uses a worker thread in addition to [api] threads, so that other requests are still answered. "
        "Further ones are answered 503 with Retry-After.",
    ),
    cfg.Opt(
        "public_endpoint",
        type=HTTPURL(),
        help="URL that links are built from, instead of the URL of the request. With noauth, requests to its host "
        "are answered in addition to those to a loopback address.",
    ),
    cfg.IntOpt("max_request_body_size", default=114688, min=1024, max=2**30, help="Maximum bytes of a request body."),
    cfg.StrOpt(
        "auth_strategy",
        default="keystone",
        choices=["keystone", "http_basic", "noauth"],
        help="keystone: tokens are checked by keystonemiddleware. http_basic: every user in "
        "http_basic_auth_user_file is an administrator. noauth: every caller is an administrator; only for one "
        "machine.",
    ),
    cfg.StrOpt(
        "http_basic_auth_user_file",
        default="/etc/autoclave/htpasswd",
        help="File of users and passwords for auth_strategy = http_basic, as `htpasswd -B` writes it: a line "
        "name:bcrypt-hash for each user. The file is read again when it changes.",
    ),
    cfg.BoolOpt(
        "public_metrics",
        default=False,
        help="Serve /metrics without authentication, because Prometheus has no Keystone token. Metrics show the "
        "names of the hosts and the number of devices in each state.",
    ),
    cfg.BoolOpt(
        "noauth_beyond_loopback",
        default=False,
        help="Let auth_strategy = noauth listen on an address other than loopback. Every client that can connect is "
        "then an administrator, also from other machines.",
    ),
]

CONDUCTOR = "conductor"

CONDUCTOR_OPTS = [
    cfg.IntOpt(
        "bind_lease",
        default=240,
        min=1,
        max=299,
        help="Seconds after which any conductor takes over an unfinished bind or unbind. The limit is Nova's own "
        "timeout of 300 seconds.",
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
        help="Maximum seconds of one statement on PostgreSQL or MariaDB, including its waits for locks. After that "
        "the request is answered 503, or the periodic task is repeated. `autoclave db sync` has a longer limit "
        "of its own.",
    ),
]

NOTIFICATIONS = "notifications"

NOTIFICATIONS_OPTS = [
    cfg.ListOpt(
        "versioned_notifications_topics",
        default=["versioned_notifications"],
        help="Topics of notifications about instances, if [DEFAULT] transport_url is set; Nova's option has the "
        "same name. Empty: no notifications are sent. Each topic is a queue that grows without a listener.",
    ),
]

UPGRADE_LEVELS = "upgrade_levels"

_RPC_VERSION = r"^1\.\d+$"

UPGRADE_LEVELS_OPTS = [
    cfg.StrOpt(
        "agent",
        regex=_RPC_VERSION,
        help="Highest RPC version that is sent to agents, such as 1.0. Unset: the version that each agent "
        "announces, which is right during an upgrade too.",
    ),
    cfg.StrOpt(
        "conductor",
        regex=_RPC_VERSION,
        help="Highest RPC version that is sent to conductors. Unset: the version of this release. Set it on an api "
        "service that is newer than a conductor.",
    ),
]
