"""Negotiate the microversion of a request."""

import re
from dataclasses import dataclass
from typing import NamedTuple

import falcon
import microversion_parse

from autoclave.exceptions import NotAcceptable

HEADER = "OpenStack-API-Version"


class Microversion(NamedTuple):
    """Hold a version of the API; versions compare in order."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


MINIMUM = Microversion(2, 0)
ARQ_PROJECT_ID = Microversion(2, 1)
"""Add ``/project_id`` to the PATCH of accelerator requests."""
PROFILE_BY_NAME = Microversion(2, 2)
"""Show a device profile by its name."""
DEVICE_STATUS = Microversion(2, 3)
"""Add ``status`` to devices."""
MANAGED = Microversion(2, 4)
"""Add ``managed`` to the attach_handle_info of PCI handles (managed-mode specification)."""
DEVICE_STATE = Microversion(2, 5)
"""Add ``device_state`` to devices, and ``POST /v2/devices/{uuid}/clean`` (NVMe specification)."""
MAXIMUM = DEVICE_STATE

_NUMBERS = re.compile(r"(\d{1,6})\.(\d{1,6})", re.ASCII)
RESOURCES = ("devices", "deployables", "attributes", "device_profiles", "accelerator_requests")
"""List the paths that are served below ``/v2`` and without it: a client without a version gets the only one."""


@dataclass(frozen=True)
class VersionedAPI:
    """Describe an API with microversions.

    :param service_type: its name in the header.
    :param paths: the paths that it serves.
    :param own_header: a header of its own, with the number only, which its clients send too.
    """

    service_type: str
    minimum: Microversion
    maximum: Microversion
    paths: re.Pattern[str]
    own_header: str | None = None

    @property
    def headers(self) -> tuple[str, ...]:
        """List the headers that an answer depends on."""
        return (HEADER,) if self.own_header is None else (HEADER, self.own_header)

    def negotiate(self, header: str | None, own: str | None = None) -> Microversion:
        """Return the version that a request asks for; the minimum if it names none.

        ``2.N`` without the service's name is accepted too, as old clients send it.

        :param header: the value of ``OpenStack-API-Version``.
        :param own: the value of :attr:`own_header`; it counts only where there is no other.
        :raises NotAcceptable: it cannot be parsed, names only other services, or is not served.
        """
        if not (header and header.strip()) and own and own.strip():
            header = f"{self.service_type} {own.strip()}"
        if not header or not header.strip():
            return self.minimum
        asked = header.strip()
        if not _NUMBERS.fullmatch(asked):
            try:
                asked = microversion_parse.get_version({HEADER.lower(): header}, self.service_type) or ""
            except ValueError:
                asked = ""
        if asked == "latest":
            return self.maximum
        numbers = _NUMBERS.fullmatch(asked)
        if numbers is None:
            raise NotAcceptable(
                f"Invalid value for {HEADER} header: send '{self.service_type} {self.maximum}' or "
                f"'{self.service_type} latest'."
            )
        version = Microversion(int(numbers[1]), int(numbers[2]))
        if not self.minimum <= version <= self.maximum:
            raise NotAcceptable(
                f"Version {version} is not supported: the versions are {self.minimum} to {self.maximum}."
            )
        return version


ACCELERATOR = VersionedAPI(
    "accelerator", MINIMUM, MAXIMUM, re.compile(rf"(/accelerator)?/(v2|{'|'.join(RESOURCES)})(/.*)?", re.DOTALL)
)
COMPUTE = VersionedAPI(
    "compute",
    Microversion(2, 1),
    Microversion(2, 96),
    re.compile(r"/compute/v2\.1(/.*)?", re.DOTALL),
    "X-OpenStack-Nova-API-Version",
)
"""Accept every version, because each resource of the clients has a maximum of its own. Answers have the shape of
2.96."""


EXTRA_SPECS_CHECKED = Microversion(2, 86)
"""Check the extra specs of a flavor when they are set (compute API)."""


def api_at(path: str) -> VersionedAPI | None:
    """Return the API that serves *path*, if it has microversions."""
    return next((api for api in (ACCELERATOR, COMPUTE) if api.paths.fullmatch(path)), None)


def of(req: falcon.Request) -> Microversion:
    """Return the version that was negotiated for *req*."""
    version: Microversion = req.context.microversion
    return version


def require(req: falcon.Request, needed: Microversion, what: str) -> None:
    """Refuse a field that a later version added.

    :raises NotAcceptable: the request's version is below *needed*.
    """
    if of(req) < needed:
        raise NotAcceptable(f"{what}: the minimal required API version should be {needed}.")


class Negotiation:
    """Negotiate the version of each request, and return it with each answer (Falcon middleware)."""

    def process_request(self, req: falcon.Request, _resp: falcon.Response) -> None:
        api = api_at(req.path)
        if api is not None:
            own = req.get_header(api.own_header) if api.own_header else None
            req.context.microversion = api.negotiate(req.get_header(HEADER), own)

    def process_response(self, req: falcon.Request, resp: falcon.Response, _resource: object, _succeeded: bool) -> None:
        api = api_at(req.path)
        if api is None:
            return
        for header in api.headers:
            resp.append_header("Vary", header)
        resp.set_header("OpenStack-API-Minimum-Version", str(api.minimum))
        resp.set_header("OpenStack-API-Maximum-Version", str(api.maximum))
        if hasattr(req.context, "microversion"):
            resp.set_header(HEADER, f"{api.service_type} {of(req)}")
            if api.own_header is not None:
                resp.set_header(api.own_header, str(of(req)))
