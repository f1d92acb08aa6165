"""The samples of the API's documentation are what the service really takes and answers."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from api_world import World, new_uuid

from autoclave.rules.device_lifecycle import DeviceState

SOURCE = Path(__file__).parents[3] / "docs" / "source"
SAMPLES = SOURCE / "api-samples"
STORY = (
    "root",
    "version",
    "devices-list",
    "device-show",
    "device-not-found",
    "device-disable",
    "device-enable",
    "device-clean",
    "deployables-list",
    "deployable-show",
    "deployable-program",
    "attributes-list",
    "attribute-create",
    "attribute-show",
    "attribute-delete",
    "device-profile-create",
    "device-profiles-list",
    "device-profile-show",
    "arq-create",
    "arq-bind",
    "arqs-list",
    "arq-show",
    "arq-unbind",
    "arq-delete",
    "arqs-delete-of-instance",
    "device-profile-delete",
    "device-profiles-delete",
)
"""The order in which one service is asked."""

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00")


@dataclass(frozen=True)
class Sample:
    """A request, and the answer to it."""

    method: str
    path: str
    headers: dict[str, str]
    body: str
    status: int
    answer: str

    @classmethod
    def read(cls, name: str) -> "Sample":
        text = (SAMPLES / f"{name}.http").read_text()
        request, status, answer = re.fullmatch(r"(.*?)\n(\d{3}) [^\n]+\n(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
        head, _, body = request.partition("\n\n")
        line, *headers = head.splitlines()
        method, path = line.split(" ")
        return cls(
            method, path, dict(header.split(": ") for header in headers), body.strip(), int(status), answer.strip()
        )


class Names:
    """Which uuid of this service each uuid of the samples stands for. They are learnt from the answers."""

    def __init__(self) -> None:
        self._real: dict[str, str] = {}

    def translate(self, text: str) -> str:
        """*text* of a sample, for this service; a name that nothing has shown yet gets a uuid of its own."""
        return _UUID.sub(lambda found: self._real.setdefault(found[0], new_uuid()), text)

    def learn(self, sample: str, real: str) -> None:
        for one, other in zip(_UUID.findall(sample), _UUID.findall(real), strict=True):
            self._real.setdefault(one, other)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, {("api", "public_endpoint"): "https://cloud.example"})
    made.add_device("0000:01:00.0")
    made.add_device("0000:02:00.0", device_state=DeviceState.ERROR)
    for name in ("slow-drive", "other-drive"):
        made.add_profile(name)
    yield made
    made.close()


def without_moments(document: Any) -> str:
    return _MOMENT.sub("<moment>", json.dumps(document))


def test_the_samples_are_what_the_service_answers(service: World) -> None:
    names = Names()
    for name in STORY:
        sample = Sample.read(name)
        answer = service.http.simulate_request(
            sample.method,
            names.translate(sample.path),
            body=names.translate(sample.body) or None,
            headers=sample.headers | ({"Content-Type": "application/json"} if sample.body else {}),
        )
        assert answer.status_code == sample.status, f"{name}: {answer.text}"
        if not sample.answer:
            assert answer.content == b"", name
            continue
        shown, real = without_moments(json.loads(sample.answer)), without_moments(answer.json)
        names.learn(shown, real)
        assert json.loads(names.translate(shown)) == json.loads(real), name


def test_every_sample_is_tried_and_shown() -> None:
    files = {path.stem for path in SAMPLES.iterdir()}
    shown = set(re.findall(r"literalinclude:: api-samples/([\w-]+)\.http", (SOURCE / "api.rst").read_text()))
    assert set(STORY) == files == shown
