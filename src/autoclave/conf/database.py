"""[database]: where the rows are."""

from oslo_config import cfg

GROUP = "database"

OPTS = [
    cfg.StrOpt(
        "connection",
        secret=True,
        help="SQLAlchemy URL: sqlite:////path, postgresql+psycopg://… or mysql+pymysql://….",
    ),
]
