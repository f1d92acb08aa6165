"""Run ``autoclave explain``: show which hosts fit a flavor and an image, and why others do not."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from autoclave.cli.client import add_service, service_of
from autoclave.cli.main import Cell, Fields

_MOST = 10
"""Limit the candidates in a table."""


class Explain(Fields):
    """Explain which hosts satisfy flavor and image, and what each of the others lacks. Change nothing."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_service(parser)
        parser.add_argument("flavor", help="name or id")
        parser.add_argument("image", help="name or uuid")
        parser.add_argument("--host", help="explain only this host; recommended with hundreds of hosts")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Iterable[str], Iterable[Any]]:
        """Request the data, and print it."""
        asked = {"flavor": parsed_args.flavor, "image": parsed_args.image, "host": parsed_args.host}
        query = {name: value for name, value in asked.items() if value is not None}
        told = service_of(parsed_args).ask("GET", "/autoclave/v1/explain", query=query)
        return tuple(told), tuple(Cell(value, _SHOWN.get(name, str)) for name, value in told.items())


def _groups(groups: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(_group(group) for group in groups)


def _group(group: Mapping[str, Any]) -> str:
    resources = ", ".join(f"{amount} {name}" for name, amount in group["resources"].items())
    traits = [*group["required"], *(f"not {name}" for name in group["forbidden"])]
    head = f"{group['suffix']} ({group['asked_by']})" if group["suffix"] else "the host itself"
    return f"{head}: {resources}{' with ' + ', '.join(traits) if traits else ''}"


def _ignored(reasons: Mapping[str, str]) -> str:
    return "\n".join(f"{key}: {why}" for key, why in reasons.items())


def _candidates(candidates: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        f"{each['host'] or 'a provider tree without a known host'}: "
        + "; ".join(f"{suffix}: {', '.join(uuids)}" for suffix, uuids in each["groups"].items() if suffix)
        for each in candidates[:_MOST]
    ]
    more = len(candidates) - _MOST
    return "\n".join([line.rstrip(": ") for line in lines] + ([f"and {more} more"] if more > 0 else []))


def _hosts(hosts: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(line for host in hosts for line in _host(host))


def _host(host: Mapping[str, Any]) -> list[str]:
    count = host["candidates"]
    if not host["why_not"]:
        return [f"{host['name']}: yes, in {count} way{'' if count == 1 else 's'}"]
    return [f"{host['name']}: no", *(f"  {reason}" for reason in host["why_not"])]


_SHOWN: Mapping[str, Callable[[Any], str]] = {
    "groups": _groups,
    "ignored_extra_specs": _ignored,
    "ignored_properties": _ignored,
    "candidates": _candidates,
    "hosts": _hosts,
}
