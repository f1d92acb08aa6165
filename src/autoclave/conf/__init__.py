"""Read the configuration. It is an object that is passed, never a global."""

from collections.abc import Mapping, Sequence
from typing import Any

from oslo_config import cfg

from autoclave.conf import agent, clouds, compute, nvme, services
from autoclave.conf.check import as_in_a_file, check_files, require_text
from autoclave.conf.keystoneauth import chosen_plugin_options

_GROUPS: Mapping[str, Sequence[cfg.Opt]] = {
    agent.GROUP: agent.OPTS,
    services.API: services.API_OPTS,
    compute.COMPUTE: compute.COMPUTE_OPTS,
    services.CONDUCTOR: services.CONDUCTOR_OPTS,
    services.DATABASE: services.DATABASE_OPTS,
    services.NOTIFICATIONS: services.NOTIFICATIONS_OPTS,
    clouds.NOVA: clouds.NOVA_OPTS,
    nvme.GROUP: nvme.OPTS,
    compute.PCI: compute.PCI_OPTS,
    clouds.PLACEMENT: clouds.PLACEMENT_OPTS,
    agent.PRIVILEGED: agent.PRIVILEGED_OPTS,
    services.UPGRADE_LEVELS: services.UPGRADE_LEVELS_OPTS,
}

_SERVICES = (clouds.NOVA, clouds.PLACEMENT)


def new_config(
    config_files: Sequence[str] = (), overrides: dict[tuple[str | None, str], Any] | None = None
) -> cfg.ConfigOpts:
    """Read *config_files* and return the configuration.

    :param overrides: ``{(group, option): value}`` laid over what the files say.
    :raises InvalidConfiguration: a file is no text, or says of our groups what cannot be; see
        :mod:`autoclave.conf.check`.
    :raises cfg.Error: a file cannot be read; ``cli.main`` turns it into a message.
    """
    conf = cfg.ConfigOpts()
    for group, options in _GROUPS.items():
        conf.register_opts(options, group=group)
    conf.register_opts(TOP_OPTS)
    require_text(config_files)
    conf([], project="autoclave", default_config_files=list(config_files))
    known = {group: {opt.dest: opt for opt in options} for group, options in _GROUPS.items()}
    for service in _SERVICES:
        for opt in chosen_plugin_options(conf, service):
            known[service].setdefault(opt.dest, opt)
    check_files(conf, conf.config_file, known)
    for (group_name, option), value in (overrides or {}).items():
        conf.set_override(option, _literal(value), group=group_name)
    return conf


def is_set(conf: cfg.ConfigOpts, group: str, option: str) -> bool:
    """Return whether the operator gives *option* a value, in a file or in the environment."""
    return bool(conf.get_location(option, group).location.is_user_controlled)


def read_as_option(group: str, name: str, values: Sequence[str]) -> list[str]:
    """Return the value of an option whose lines in a file are *values*.

    :raises InvalidConfiguration: a ``$`` in them begins the name of no option.
    """
    return as_in_a_file(new_config(), group, name, values)


def _literal(value: Any) -> Any:
    """Escape *value* for oslo.config, where a ``$`` begins the name of another option."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    return [_literal(item) for item in value] if isinstance(value, list | tuple) else value


TOP_OPTS = [
    cfg.StrOpt(
        "transport_url",
        secret=True,
        default="",
        help="URL of RabbitMQ, such as rabbit://user:password@host:5672/. Empty: the services run in one process and "
        "call each other directly.",
    ),
]


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return every option by group, for oslo-config-generator."""
    return [("DEFAULT", TOP_OPTS), *((group, list(options)) for group, options in _GROUPS.items())]
