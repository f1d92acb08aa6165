"""Check our groups of a configuration file when it is read, not when an option is used.

oslo.config ignores unknown options, and parses a value at its first use. A misspelled option would protect nothing,
and `plan` would accept a file that keeps `up` from starting.
"""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from oslo_config import cfg, types

from autoclave.conf.keystoneauth import AUTH_TYPES, AuthPlugin
from autoclave.conf.option_types import HTTPURL
from autoclave.exceptions import InvalidConfiguration

_Options = Mapping[str, Mapping[str, cfg.Opt]]

_DOLLAR = "a '$' begins the name of another option; write '$$' for the character itself"


def check_files(conf: cfg.ConfigOpts, files: Sequence[str], options: _Options) -> None:
    """Refuse unknown options in our groups, misspelled groups, and invalid values.

    Skip other groups: files are shared, and libraries register their options late.

    :param options: our options, by group and name.
    :raises InvalidConfiguration: names the file, the option, and the intended name or the allowed values.
    """
    for file in files:
        for section, keys in _sections(file).items():
            group = section.lower()
            if group in options:
                _refuse_unknown(file, group, keys, options[group])
            elif (meant := _nearly(group, options)) is not None:
                raise InvalidConfiguration(
                    f"{file} has this section, which no service reads; did you mean [{meant}]?", option=f"[{section}]"
                )
    for group, known in options.items():
        for option in known.values():
            _refuse_bad_value(conf, files, group, option)


def require_text(files: Sequence[str]) -> None:
    """Refuse a file that is not UTF-8. oslo.config reports a missing file itself.

    :raises InvalidConfiguration: names the file and the line.
    """
    for file in files:
        for number, line in enumerate(_lines(file), start=1):
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                raise InvalidConfiguration(
                    f"line {number} of {file} is not UTF-8 ({error.reason}); convert the file to UTF-8",
                    option="--config-file",
                ) from None
            if "\0" in text:
                raise InvalidConfiguration(f"line {number} of {file} contains a NUL character", option="--config-file")


def _lines(file: str) -> list[bytes]:
    try:
        return Path(file).expanduser().read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except IsADirectoryError:
        raise InvalidConfiguration(f"{file} is a directory, not a file", option="--config-file") from None
    except OSError as error:
        raise InvalidConfiguration(f"{file} cannot be read: {error.strerror}", option="--config-file") from error


def as_in_a_file(conf: cfg.ConfigOpts, group: str, name: str, values: Sequence[str]) -> list[str]:
    """Return the value of the option *name*, whose lines in a file are *values*.

    :raises InvalidConfiguration: see :func:`check_files`.
    """
    conf.set_override(name, list(values), group=group)
    try:
        return list(conf[group][name])
    except (cfg.TemplateSubstitutionError, cfg.NoSuchOptError) as error:
        raise InvalidConfiguration(_DOLLAR, option=f"[{group}] {name}") from error


def _refuse_unknown(file: str, group: str, keys: Mapping[str, Any], known: Mapping[str, cfg.Opt]) -> None:
    names = {name for option in known.values() for name in _names(option)}
    for key in keys:
        if key not in names:
            close = get_close_matches(key.replace("-", "_"), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known options are {', '.join(sorted(known))}"
            raise InvalidConfiguration(f"{file} sets an option that does not exist; {hint}", option=f"[{group}] {key}")


def _nearly(group: str, options: _Options) -> str | None:
    if any(part in options for part in group.split("_")):  # such as Nova's [api_database]
        return None
    return next(iter(get_close_matches(group, options, n=1, cutoff=0.8)), None)


def _refuse_bad_value(conf: cfg.ConfigOpts, files: Sequence[str], group: str, option: cfg.Opt) -> None:
    try:
        conf[group][option.dest]
    except (cfg.TemplateSubstitutionError, cfg.NoSuchOptError) as error:
        file, value = _last(files, group, option)
        raise InvalidConfiguration(
            f"{file} says {value!r}: {_DOLLAR}",
            option=f"[{group}] {option.dest}",
        ) from error
    except ValueError as error:
        file, value = _last(files, group, option)
        hint = "; a comment needs a line of its own" if any(mark in value for mark in (" #", " ;")) else ""
        raise InvalidConfiguration(
            f"{file} says {value!r}, which is not {_allowed(option) or f'valid ({error})'}{hint}",
            option=f"[{group}] {option.dest}",
        ) from error


def _names(option: cfg.Opt) -> list[str]:
    """Return the names that a file may give *option*, the present one last."""
    return [*(old.name for old in option.deprecated_opts), option.dest]


def _last(files: Sequence[str], group: str, option: cfg.Opt) -> tuple[str, str]:
    """Return the file that takes effect, and its value."""
    found = [
        (file, values[-1])
        for name in _names(option)
        for file in files
        for section, keys in _sections(file).items()
        if section.lower() == group and (values := keys.get(name))
    ]
    return found[-1]


def _allowed(option: cfg.Opt) -> str | None:
    kind = option.type
    if isinstance(kind, AuthPlugin):
        return f"one of {', '.join(AUTH_TYPES)}, or another installed plugin of keystoneauth1"
    if isinstance(kind, HTTPURL):
        return "a URL that begins with http:// or https://, followed by a host"
    if getattr(kind, "choices", None):
        return f"one of {', '.join(str(choice) for choice in kind.choices if choice is not None)}"
    if isinstance(kind, types.List) and getattr(kind.item_type, "choices", None):
        return f"a list of any of {', '.join(map(str, kind.item_type.choices))}"
    if isinstance(kind, types.List) and isinstance(kind.item_type, types.Integer):
        return "a list of whole numbers"
    if isinstance(kind, types.Boolean):
        return "true or false"
    if isinstance(kind, types.Number):
        noun = "a whole number" if isinstance(kind, types.Integer) else "a number"
        return f"{noun}{''.join(_limits(kind))}"
    if isinstance(kind, types.HostAddress):
        return "an address or a host name"
    return None


def _limits(kind: types.Number) -> Iterator[str]:
    if kind.min is not None and kind.max is not None:
        yield f" from {kind.min} to {kind.max}"
    elif kind.min is not None:
        yield f" of at least {kind.min}"


def _sections(file: str) -> dict[str, dict[str, list[str]]]:
    sections: dict[str, dict[str, list[str]]] = {}
    cfg.ConfigParser(str(Path(file).expanduser()), sections).parse()
    return sections
