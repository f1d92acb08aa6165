"""Microversions of the accelerator API: what a client asks for, and what it is told."""

import re
from typing import NamedTuple

import falcon
import microversion_parse

from autoclave.exceptions import NotAcceptable

SERVICE_TYPE = "accelerator"
HEADER = "OpenStack-API-Version"


class Microversion(NamedTuple):
    """A version of the API; they compare in order."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


MINIMUM = Microversion(2, 0)
ARQ_PROJECT_ID = Microversion(2, 1)
"""``/project_id`` in the PATCH of accelerator requests."""
PROFILE_BY_NAME = Microversion(2, 2)
"""A device profile is shown by its name."""
DEVICE_STATUS = Microversion(2, 3)
"""``status`` of devices."""
MANAGED = Microversion(2, 4)
"""``managed`` in the attach_handle_info of PCI handles (managed-mode specification)."""
DEVICE_STATE = Microversion(2, 5)
"""``device_state`` of devices, and ``POST /v2/devices/{uuid}/clean`` (NVMe specification)."""
MAXIMUM = DEVICE_STATE

_NUMBERS = re.compile(r"(\d{1,6})\.(\d{1,6})", re.ASCII)
RESOURCES = ("devices", "deployables", "attributes", "device_profiles", "accelerator_requests")
"""What is served below ``/v2``, and without it too: who leaves the version out means the only one that there is."""
_VERSIONED = re.compile(rf"(/accelerator)?/(v2|{'|'.join(RESOURCES)})(/.*)?", re.DOTALL)


def negotiate(header: str | None) -> Microversion:
    """The version that the value of ``OpenStack-API-Version`` asks for; :data:`MINIMUM` when it is absent.

    ``2.N`` without the service's name is accepted too, as old clients send it.

    :raises NotAcceptable: it cannot be parsed, names only other services, or is not served.
    """
    if not header or not header.strip():
        return MINIMUM
    asked = header.strip()
    if not _NUMBERS.fullmatch(asked):
        try:
            asked = microversion_parse.get_version({HEADER.lower(): header}, SERVICE_TYPE) or ""
        except ValueError:
            asked = ""
    if asked == "latest":
        return MAXIMUM
    numbers = _NUMBERS.fullmatch(asked)
    if numbers is None:
        raise NotAcceptable(
            f"Invalid value for {HEADER} header: write '{SERVICE_TYPE} {MAXIMUM}' or '{SERVICE_TYPE} latest'."
        )
    version = Microversion(int(numbers[1]), int(numbers[2]))
    if not MINIMUM <= version <= MAXIMUM:
        raise NotAcceptable(f"Version {version} is not supported: the versions are {MINIMUM} to {MAXIMUM}.")
    return version


def of(req: falcon.Request) -> Microversion:
    """The version that was negotiated for *req*."""
    version: Microversion = req.context.microversion
    return version


def require(req: falcon.Request, needed: Microversion, what: str) -> None:
    """Refuse what came with a later version than the caller asked for.

    :raises NotAcceptable: the request's version is below *needed*.
    """
    if of(req) < needed:
        raise NotAcceptable(f"{what}: the minimal required API version should be {needed}.")


class Negotiation:
    """Falcon middleware: negotiates each request for the accelerator API and says in each answer what was found."""

    def process_request(self, req: falcon.Request, _resp: falcon.Response) -> None:
        if _VERSIONED.fullmatch(req.path):
            req.context.microversion = negotiate(req.get_header(HEADER))

    def process_response(self, req: falcon.Request, resp: falcon.Response, _resource: object, _succeeded: bool) -> None:
        if not _VERSIONED.fullmatch(req.path):
            return
        resp.append_header("Vary", HEADER)
        resp.set_header("OpenStack-API-Minimum-Version", str(MINIMUM))
        resp.set_header("OpenStack-API-Maximum-Version", str(MAXIMUM))
        if hasattr(req.context, "microversion"):
            resp.set_header(HEADER, f"{SERVICE_TYPE} {of(req)}")
