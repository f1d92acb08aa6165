"""The PATCH of accelerator requests, understood: what is to be bound, or given back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoclave.api import uuids
from autoclave.api.schemas.accelerator_requests import PATHS, PROJECT_PATH
from autoclave.exceptions import BadRequest


@dataclass(frozen=True)
class Patch:
    """What one PATCH asks for: either binds or unbinds, never both.

    :param binds: requests as ``ConductorManager.arq_bind`` takes them.
    :param unbinds: uuids of accelerator requests.
    :param names_project: ``/project_id`` is among the paths.
    """

    binds: tuple[dict[str, Any], ...]
    unbinds: tuple[str, ...]
    names_project: bool


def parse(document: Mapping[str, Sequence[Mapping[str, Any]]]) -> Patch:
    """*document* has the shape that the schema demands; every entry of it is checked here.

    :raises BadRequest: an entry is incomplete, mixes add and remove, or differs from the others.
    """
    entries = {uuids.require(key, "an accelerator request"): value for key, value in document.items()}
    if len(entries) != len(document):
        raise BadRequest("An accelerator request is named twice, in capitals and in small letters.")
    kinds = {operation["op"] for operations in entries.values() for operation in operations}
    if len(kinds) != 1:
        raise BadRequest("Every operation of one PATCH must be add, or every one remove.")
    named = {arq: _by_path(arq, operations) for arq, operations in entries.items()}
    names_project = any(PROJECT_PATH in paths for paths in named.values())
    if kinds == {"remove"}:
        return Patch((), tuple(named), names_project)
    return Patch(tuple(_bind(arq, paths) for arq, paths in named.items()), (), names_project)


def _by_path(arq: str, operations: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    paths = {operation["path"]: operation for operation in operations}
    if len(paths) != len(operations):
        raise BadRequest(f"The patch of {arq} names a path twice.")
    absent = [path for path in PATHS if path not in paths]
    if absent:
        raise BadRequest(f"Fields absent in patch of {arq}: {', '.join(absent)}")
    return paths


def _bind(arq: str, paths: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    values = {}
    for path, operation in paths.items():
        value = operation.get("value")
        if not value:
            raise BadRequest(f"The patch of {arq} adds {path} without a value.")
        values[path] = value
    return {
        "arq_uuid": arq,
        "hostname": values["/hostname"],
        "device_rp_uuid": uuids.require(values["/device_rp_uuid"], f"/device_rp_uuid of {arq}"),
        "instance_uuid": uuids.require(values["/instance_uuid"], f"/instance_uuid of {arq}"),
        "project_id": values.get(PROJECT_PATH),
    }
