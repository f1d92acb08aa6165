"""Make the keystoneauth1 adapter of a service that a group of the configuration names."""

import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from keystoneauth1 import adapter as ksa_adapter
from keystoneauth1 import exceptions as ksa
from keystoneauth1 import loading
from keystoneauth1.discover import normalize_version_number
from oslo_config import cfg

from autoclave.conf.keystoneauth import AUTH_TYPES, read_auth_type, register_plugin_options
from autoclave.conf.option_types import is_http_url
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

_SCOPES = (("project_id", "project_name"), ("domain_id", "domain_name"), ("system_scope",), ("trust_id",))
"""A token has one scope. Options of one tuple name the same."""

_NOTHING: Mapping[str, str] = MappingProxyType({})

UNEXPECTED = (OSError, LookupError, TypeError, ValueError, AttributeError)
"""The exceptions of keystoneauth1 at answers that are not Keystone's, and at TLS files that are gone."""


class UnusableAnswer(ksa.ClientException):  # type: ignore[misc]  # keystoneauth1's types are not complete
    """Report an answer that keystoneauth1 takes for Keystone's, and cannot read, or a TLS file that is gone."""


class ServiceAdapter(ksa_adapter.Adapter):  # type: ignore[misc]
    """Raise every failure as a ``ClientException``, which callers expect."""

    def request(self, *args: Any, **kwargs: Any) -> Any:
        """Send a request, and return the response.

        :raises keystoneauth1.exceptions.ClientException: there is none.
        """
        try:
            return super().request(*args, **kwargs)
        except UNEXPECTED as error:
            raise _unusable(error) from error

    def get_project_id(self, auth: Any = None) -> Any:
        """Return the project of the token.

        :raises keystoneauth1.exceptions.ClientException: there is no token.
        """
        try:
            return super().get_project_id(auth)
        except UNEXPECTED as error:
            raise _unusable(error) from error


class _AdapterLoader(loading.adapter.Adapter):  # type: ignore[misc]
    @property
    def plugin_class(self) -> type[ServiceAdapter]:
        return ServiceAdapter


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
    require_tls_files(conf, group)
    _require_versions(conf, group)
    if not options.service_type:
        raise InvalidConfiguration("must not be empty", option=f"[{group}] service_type")
    try:
        session = loading.load_session_from_conf_options(
            conf, group, auth=auth, redirect=False, insecure=options.insecure and not options.cafile
        )
    except (ValueError, ssl.SSLError) as error:
        raise InvalidConfiguration(str(error), option=f"[{group}] tls_min_version, tls_ciphers") from error
    for pool in session.session.adapters.values():
        pool.init_poolmanager(_CONNECTIONS, _CONNECTIONS)
    try:
        return _AdapterLoader().load_from_conf_options(
            conf,
            group,
            session=session,
            endpoint_override=instead.get("endpoint_override") or options.endpoint_override,
            default_microversion=microversion,
            raise_exc=False,
        )
    except TypeError as error:
        raise InvalidConfiguration(str(error), option=f"[{group}] version, min_version, max_version") from error


def require_tls_files(conf: cfg.ConfigOpts, group: str) -> None:
    """Require that the files of ``cafile``, ``certfile`` and ``keyfile`` can be used; requests reads them much later.

    :raises InvalidConfiguration: names the option and the file.
    """
    options = conf[group]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if options.cafile:
        place = "capath" if os.path.isdir(options.cafile) else "cafile"
        _use(f"[{group}] cafile", options.cafile, lambda: context.load_verify_locations(**{place: options.cafile}))
    if options.keyfile and not options.certfile:
        raise InvalidConfiguration("is needed for keyfile", option=f"[{group}] certfile")
    if options.certfile:
        key = options.keyfile or options.certfile
        for option, file in (("certfile", options.certfile), ("keyfile", key)):
            _use(f"[{group}] {option}", file, lambda file=file: Path(file).read_bytes())  # type: ignore[misc]
        # An encrypted key would wait for a passphrase at the terminal.
        _use(f"[{group}] certfile, keyfile", key, lambda: context.load_cert_chain(options.certfile, key, lambda: ""))


def _use(option: str, file: str, read: Callable[[], object]) -> None:
    try:
        read()
    except ssl.SSLError as error:
        said = error.reason or error.args[-1]
        raise InvalidConfiguration(f"{file} does not hold what it should, in PEM: {said}", option=option) from error
    except OSError as error:
        raise InvalidConfiguration(f"{file} cannot be read: {error.strerror or error}", option=option) from error


def _require_versions(conf: cfg.ConfigOpts, group: str) -> None:
    found: dict[str, Any] = {}
    for name in ("version", "min_version", "max_version"):
        if text := conf[group][name]:
            try:
                found[name] = normalize_version_number(text)
            except TypeError:
                raise InvalidConfiguration(
                    f"is {text!r}, not a version such as 2.1", option=f"[{group}] {name}"
                ) from None
    if {"min_version", "max_version"} <= found.keys() and found["min_version"] > found["max_version"]:
        raise InvalidConfiguration("is higher than max_version", option=f"[{group}] min_version")


def _unusable(error: Exception) -> UnusableAnswer:
    if isinstance(error, OSError):
        return UnusableAnswer(str(error))
    return UnusableAnswer(
        f"an answer or an option cannot be used ({type(error).__name__}: {error}); see that auth_url is the URL of "
        "Keystone, and what it answers"
    )


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
        if given.get("auth_url") and not is_http_url(given["auth_url"]):
            raise InvalidConfiguration(
                f"{given['auth_url']!r} is not a URL that begins with http:// or https://",
                option=f"[{section}] auth_url",
            )
        _require_one_scope(given, section)
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


def _require_one_scope(given: Mapping[str, Any], section: str) -> None:
    named = [next(filter(given.get, names)) for names in _SCOPES if any(map(given.get, names))]
    if len(named) > 1:
        raise InvalidConfiguration(
            "a token has one scope: a project, a domain, the system or a trust. Leave out the others",
            option=f"[{section}] {', '.join(named)}",
        )
    if given.get("system_scope") and given["system_scope"] != "all":
        raise InvalidConfiguration("can only be all", option=f"[{section}] system_scope")
