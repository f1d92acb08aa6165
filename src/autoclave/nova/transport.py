"""How requests reach Nova: one keystoneauth1 adapter, made of the ``[nova]`` options."""

from typing import Any

from keystoneauth1 import exceptions as ksa
from keystoneauth1 import loading
from oslo_config import cfg

from autoclave.conf.nova import GROUP
from autoclave.exceptions import InvalidConfiguration
from autoclave.nova.client import MICROVERSION

_NEEDED = {"password": ("auth_url", "password"), "admin_token": ("endpoint", "token"), "none": ("endpoint",)}


def http_adapter(conf: cfg.ConfigOpts) -> Any:
    """An adapter for the Nova of ``[nova]``, or None if ``auth_type`` is not set: then there is none to be told.

    Make one per process: it holds the connections and the token.

    :raises InvalidConfiguration: an option that auth_type needs is not set.
    """
    if not conf.nova.auth_type:
        return None
    made = loading.load_session_from_conf_options(conf, GROUP, auth=_auth(conf.nova), redirect=False)
    return loading.load_adapter_from_conf_options(
        conf, GROUP, session=made, default_microversion=MICROVERSION, raise_exc=False
    )


def _auth(group: Any) -> Any:
    for option in _NEEDED.get(group.auth_type, ()):
        if not group[option]:
            raise InvalidConfiguration(f"is needed for auth_type = {group.auth_type}", option=f"[nova] {option}")
    try:
        return loading.get_plugin_loader(group.auth_type).load_from_options_getter(lambda option: group[option.dest])
    except ksa.AuthPluginException as error:
        raise InvalidConfiguration(f"{group.auth_type}: {error}", option="[nova] auth_type") from error
