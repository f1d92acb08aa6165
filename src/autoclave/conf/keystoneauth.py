"""Define keystoneauth1's options in a group of ours: authentication, session and endpoint of one service."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from keystoneauth1 import exceptions as ksa
from keystoneauth1 import loading
from oslo_config import cfg, types

from autoclave.conf.option_types import HTTPURL

AUTH_TYPES = ("password", "v3applicationcredential", "admin_token", "none")
"""List the plugins whose options are documented. Any other installed plugin is accepted, too."""

_INTERFACES = ("public", "internal", "admin")


class AuthPlugin(types.String):  # type: ignore[misc]  # oslo.config comes without types
    """Accept the name of an installed authentication plugin of keystoneauth1."""

    def __call__(self, value: Any) -> str:
        name = str(super().__call__(value))
        try:
            loading.get_plugin_loader(name)
        except ksa.NoMatchingPlugin as error:
            raise ValueError(f"{name} is not an installed plugin of keystoneauth1") from error
        return name


def service_options(service_type: str, without_auth_type: str, own: Sequence[cfg.Opt] = ()) -> list[cfg.Opt]:
    """Return *own* options, and keystoneauth's that reach a service of *service_type*.

    An option of *own* replaces keystoneauth's of the same name. Options keep their present names only, except
    ``interface``, which is the old name of ``valid_interfaces``.

    :param without_auth_type: ends the help of ``auth_type``: what it means that it is not set.
    """
    found = {option.dest: option for option in own}
    interface = {"valid-interfaces": [cfg.DeprecatedOpt("interface")]}
    adapter = loading.get_adapter_conf_options(include_deprecated=False, deprecated_opts=interface)
    plugins = (option for name in AUTH_TYPES for option in loading.get_auth_plugin_conf_options(name))
    for option in (*loading.get_auth_common_conf_options(), *plugins, *loading.get_session_conf_options()):
        option.deprecated_opts = []
        option.required = False  # of one auth_type, not of all
        found.setdefault(option.dest, option)
    for option in adapter:
        found.setdefault(option.dest, option)
    found["auth_type"].type = AuthPlugin()
    found["auth_type"].help = (
        f"Authentication plugin: {', '.join(AUTH_TYPES)}, or another installed plugin of keystoneauth1. "
        f"{without_auth_type}"
    )
    for name in ("endpoint_override", "auth_url"):
        found[name].type = HTTPURL()
    found["valid_interfaces"].type = types.List(types.String(choices=list(_INTERFACES)))
    options = list(found.values())
    cfg.set_defaults(options, service_type=service_type, valid_interfaces=["internal", "public"])
    return options


def read_auth_type(conf: cfg.ConfigOpts, section: str) -> str | None:
    """Return the ``auth_type`` of any *section*, registered as keystoneauth does where it is not ours."""
    for option in loading.get_auth_common_conf_options():
        with suppress(cfg.DuplicateOptError):  # registered already, by us or by another library
            conf.register_opt(option, group=section)
    auth_type: str | None = conf[section].auth_type
    return auth_type


def register_plugin_options(conf: cfg.ConfigOpts, section: str, auth_type: str) -> list[cfg.Opt]:
    """Register the options of the plugin *auth_type* in *section*, as keystoneauth does, and return them.

    :raises keystoneauth1.exceptions.NoMatchingPlugin: there is no such plugin.
    """
    options: list[cfg.Opt] = loading.get_auth_plugin_conf_options(auth_type)
    for option in options:
        with suppress(cfg.DuplicateOptError):
            conf.register_opt(option, group=section)
    return options


def chosen_plugin_options(conf: cfg.ConfigOpts, group: str) -> list[cfg.Opt]:
    """Register the options of the plugin that *group* names, and return them; none if it names none that there is."""
    try:
        auth_type = conf[group].auth_type
    except (ValueError, cfg.TemplateSubstitutionError, cfg.NoSuchOptError):
        return []  # check_files() reports the value
    return register_plugin_options(conf, group, auth_type) if auth_type else []
