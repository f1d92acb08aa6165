"""Define [notifications]: the notifications about instances."""

from oslo_config import cfg

GROUP = "notifications"

OPTS = [
    cfg.ListOpt(
        "versioned_notifications_topics",
        default=["versioned_notifications"],
        help="The topics on which others are told of instances, if there is a [DEFAULT] transport_url; the option has "
        "this name in Nova. Empty: nobody is told. Each topic is a queue that must have a listener, or it grows.",
    ),
]
