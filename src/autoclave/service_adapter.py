"""Make the keystoneauth1 adapter of a service that a group of the configuration names."""

import ssl
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from keystoneauth1 import exceptions as ksa
from keystoneauth1 import loading
from oslo_config import cfg

from autoclave.conf.keystoneauth import AUTH_TYPES, read_auth_type, register_plugin_options
from autoclave.exceptions import InvalidConfiguration

_CONNECTIONS = 32
"""Connections that the pool of a process keeps to one server."""

_PASSWORD = (("auth_url",), ("username", "user_id"), ("password",))
_URL = ("endpoint_override", "endpoint")
_NEEDED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "password": _PASSWORD,
    "v3password": _PASSWORD,
    "v3applicationcredential": (
        ("auth_url",),
        ("application_credential_id", "application_credential_name"),
        ("application_credential_secret",),
    ),
    "token": (("auth_url",), ("token",)),
    "admin_token": (_URL, ("token",)),
    "none": (_URL,),
}
"""What a plugin cannot do without, by auth_type. One option of each tuple is enough."""

_NOTHING: Mapping[str, str] = MappingProxyType({})


def make_adapter(conf: cfg.ConfigOpts, group: str, *, microversion: str, instead: Mapping[str, str] = _NOTHING) -> Any:
    """Return an adapter for the service of *group*, whose answers of every status come back as responses.

    Make one per process: it holds the connections and the token. The endpoint is ``endpoint_override``, or else the
    catalog's. No redirect is followed, since it would send a request twice. A token that the service refuses with 401
    is replaced once. ``cafile`` outweighs ``insecure``.

    :param instead: values that replace those of the configuration.
    :raises InvalidConfiguration: an option that ``auth_type`` needs is not set, or some contradict each other.
    """
    options = conf[group]
    auth = _auth(conf, group, instead)
    try:
        session = loading.load_session_from_conf_options(
            conf, group, auth=auth, redirect=False, insecure=options.insecure and not options.cafile
        )
    except (ValueError, ssl.SSLError) as error:
        raise InvalidConfiguration(str(error), option=f"[{group}] tls_min_version, tls_ciphers") from error
    for pool in session.session.adapters.values():
        pool.init_poolmanager(_CONNECTIONS, _CONNECTIONS)
    try:
        return loading.load_adapter_from_conf_options(
            conf,
            group,
            session=session,
            endpoint_override=instead.get("endpoint_override") or options.endpoint_override,
            default_microversion=microversion,
            raise_exc=False,
        )
    except TypeError as error:
        raise InvalidConfiguration(str(error), option=f"[{group}] version, min_version, max_version") from error


def reason(group: str, adapter: Any, error: ksa.ClientException) -> str:
    """Return why a request of *adapter*, made of *group*, ended with *error*; what to do if the catalog lacks it."""
    if not isinstance(error, ksa.EndpointNotFound):
        return str(error)
    region = f"region {adapter.region_name}" if adapter.region_name else "any region"
    return (
        f"the catalog has no endpoint of service type {adapter.service_type} and interface "
        f"{' or '.join(adapter.interface)} in {region}: create it, or set [{group}] region_name, valid_interfaces or "
        "endpoint_override"
    )


def _auth(conf: cfg.ConfigOpts, group: str, instead: Mapping[str, str]) -> Any:
    section = conf[group].auth_section or group
    auth_type = instead.get("auth_type") or read_auth_type(conf, section)
    if not auth_type:
        raise InvalidConfiguration(
            f"is not set; set it to {', '.join(AUTH_TYPES)}, or another plugin of keystoneauth1",
            option=f"[{section}] auth_type",
        )
    try:
        plugin_options = register_plugin_options(conf, section, auth_type)
        given = {option.dest: conf[section][option.dest] for option in plugin_options}
        given["endpoint_override"] = conf[group].endpoint_override
        given.update(instead)
        for names in _NEEDED.get(auth_type, ()):
            if not any(given[name] for name in names if name in given):
                place = group if names is _URL else section
                raise InvalidConfiguration(f"is needed for auth_type = {auth_type}", option=f"[{place}] {names[0]}")
        return loading.get_plugin_loader(auth_type).load_from_options_getter(lambda option: given[option.dest])
    except ksa.MissingRequiredOptions as error:
        [first, *_] = error.options
        raise InvalidConfiguration(
            f"is needed for auth_type = {auth_type}", option=f"[{section}] {first.dest}"
        ) from error
    except ksa.AuthPluginException as error:
        raise InvalidConfiguration(f"{auth_type}: {error}", option=f"[{section}] auth_type") from error
