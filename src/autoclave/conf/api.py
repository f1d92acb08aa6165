"""Define [api]: the HTTP service."""

from oslo_config import cfg

GROUP = "api"

OPTS = [
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
    cfg.StrOpt(
        "public_endpoint",
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
