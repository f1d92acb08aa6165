"""Define [database]: the connection to the database."""

from oslo_config import cfg

from autoclave.conf.numbers import DAY

GROUP = "database"

OPTS = [
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
