"""How requests reach Nova: one keystoneauth1 adapter, made of the ``[nova]`` options."""

from typing import Any

from oslo_config import cfg

from autoclave.conf.nova import GROUP
from autoclave.nova.client import MICROVERSION
from autoclave.service_adapter import make_adapter


def http_adapter(conf: cfg.ConfigOpts) -> Any:
    """An adapter for the Nova of ``[nova]``, or None if ``auth_type`` is not set: then there is none to be told.

    Make one per process: it holds the connections and the token.

    :raises InvalidConfiguration: an option that auth_type needs is not set.
    """
    if not conf.nova.auth_type and not conf.nova.auth_section:
        return None
    return make_adapter(conf, GROUP, microversion=MICROVERSION)
