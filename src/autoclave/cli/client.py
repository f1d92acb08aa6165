"""Send a command's requests to the HTTP service."""

import argparse
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests

from autoclave.conf.option_types import is_http_url
from autoclave.exceptions import AutoclaveError, InvalidConfiguration
from autoclave.services.data_dir import CloudsFile

_TIMEOUT = 30
_DEFAULT_URL = "http://127.0.0.1:6666"


class ServiceClient:
    """Send requests to the service, and raise any failure as one sentence.

    :param url: where the service listens; with http_basic, name and password stand before the host.
    :param token: an administrator's token.
    :raises InvalidConfiguration: *url* is no HTTP URL.
    """

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/")
        self._shown = re.sub(r"(//|^)[^/]*@", r"\1", self._url)
        if not is_http_url(self._url):
            raise InvalidConfiguration(
                f"{self._shown!r} is not the URL of a service. Use http:// or https://, such as {_DEFAULT_URL}",
                option="--url, AUTOCLAVE_URL",
            )
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers["X-Auth-Token"] = token

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        version: str | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        """Return the answer to one request; an empty mapping if it has no body.

        :param path: not quoted, and without a query.
        :param version: microversion, such as ``accelerator 2.5``.
        :raises AutoclaveError: the service does not answer, or refuses.
        """
        headers = {} if version is None else {"OpenStack-API-Version": version}
        try:
            answer = self._session.request(
                method, self._url + quote(path, safe="/:"), json=body, headers=headers, params=query, timeout=_TIMEOUT
            )
        except requests.RequestException as error:
            raise AutoclaveError(
                f"{self._shown} does not answer ({type(error).__name__}); is Autoclave running there? Set its URL "
                "with --url or AUTOCLAVE_URL, or the data directory of `autoclave up` with AUTOCLAVE_DATA_DIR"
            ) from error
        if answer.status_code == 401:
            raise AutoclaveError(
                f"401: {self._shown} requires authentication: {_fault(answer)} With Keystone, pass an "
                "administrator's token with --token or AUTOCLAVE_TOKEN. With http_basic, put user name and password "
                "into AUTOCLAVE_URL"
            )
        if not answer.ok:
            raise AutoclaveError(f"{answer.status_code}: {_fault(answer)}")
        try:
            return answer.json() if answer.content else {}
        except ValueError as error:
            raise AutoclaveError(
                f"{self._shown} does not answer as Autoclave does, but with {answer.text[:60]!r}; name Autoclave's URL "
                "with --url or AUTOCLAVE_URL"
            ) from error


def _fault(answer: requests.Response) -> str:
    try:
        document = answer.json()
        if "errors" in document:  # Placement's
            return str(document["errors"][0]["detail"]).strip()
        # the accelerator API wraps its message in JSON twice, for Cyborg's clients
        return str(json.loads(document["error_message"])["faultstring"])
    except (ValueError, LookupError, TypeError):
        return answer.text.strip() or answer.reason


def add_service(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name the service and the credentials."""
    parser.add_argument(
        "--url",
        default=os.environ.get("AUTOCLAVE_URL"),
        help="URL of Autoclave (env AUTOCLAVE_URL; default: that of the `autoclave up` in the directory "
        f"AUTOCLAVE_DATA_DIR, or {_DEFAULT_URL}); with auth_strategy = http_basic, set "
        "http://NAME:PASSWORD@HOST:PORT in the environment",
    )
    parser.add_argument(
        "--token",
        default=os.environ.get("AUTOCLAVE_TOKEN", "admin"),
        help="an administrator's token (env AUTOCLAVE_TOKEN)",
    )


def service_of(parsed_args: argparse.Namespace, data_dir: Path | None = None) -> ServiceClient:
    """Return the client of the service that :func:`add_service`'s arguments name.

    :param data_dir: the data directory of `autoclave up`, if they name no service; None: ``AUTOCLAVE_DATA_DIR``.
    :raises InvalidConfiguration: the data directory has no address of its `autoclave up`.
    """
    return ServiceClient(parsed_args.url or _url_in(data_dir) or _DEFAULT_URL, parsed_args.token)


def _url_in(data_dir: Path | None) -> str | None:
    told = os.environ.get("AUTOCLAVE_DATA_DIR") if data_dir is None else data_dir
    return CloudsFile(Path(told)).url if told else None
