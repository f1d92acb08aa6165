"""Policy files that cannot be used: refused at start, and at run time the last good rules hold."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_world import World
from keystone_double import Keystone
from keystone_world import ask, keystone

from autoclave.exceptions import InvalidConfiguration
from freeport import free_port

__all__ = ["keystone"]

DEVICES = "/autoclave/v1/devices"
GOOD = '"autoclave:device:get": "role:reader"\n'
BROKEN = [
    '"autoclave:device:get":\n',
    '"autoclave:device:get": ""\n',
    '"autoclave:device:get": [\n',
    '"autoclave:device:get": "role"\n',
    '"autoclave:device:gets": "role:reader"\n',
    '"autoclave:device:get": "rule:nothing"\n',
    "- a list\n",
    "\0",
    None,
]


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    return tmp_path / "policy.yaml"


def started(tmp_path: Path, keystone: Keystone, options: str = "") -> World:
    config = tmp_path / "autoclave.conf"
    config.write_text(f"{keystone.config()}[oslo_policy]\npolicy_file = {tmp_path / 'policy.yaml'}\n{options}")
    return World(tmp_path, {("api", "auth_strategy"): "keystone"}, (str(config),))


@pytest.fixture
def world(tmp_path: Path, rules: Path, keystone: Keystone) -> Iterator[World]:
    rules.write_text(GOOD)
    made = started(tmp_path, keystone)
    yield made
    made.close()


def write(rules: Path, text: str | None) -> None:
    """Replace the file, or take it away; its time is another one, however coarse the clock."""
    if text is None:
        rules.unlink()
        return
    before = rules.stat().st_mtime_ns if rules.exists() else 0
    rules.write_text(text)
    os.utime(rules, ns=(before + 10**9, before + 10**9))


@pytest.mark.parametrize("text", BROKEN)
def test_an_unusable_file_keeps_the_api_from_starting(
    tmp_path: Path, rules: Path, keystone: Keystone, text: str | None
) -> None:
    if text is not None:
        rules.write_text(text)
    with pytest.raises(InvalidConfiguration, match=str(rules)) as caught:
        started(tmp_path, keystone)
    assert text is None or f"{rules}, line 1: " in str(caught.value)


@pytest.mark.parametrize("text", BROKEN)
def test_a_file_broken_at_run_time_leaves_the_last_good_rules(
    world: World, rules: Path, caplog: pytest.LogCaptureFixture, text: str | None
) -> None:
    assert ask(world, "reader", "GET", DEVICES).status_code == 200
    write(rules, text)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert ask(world, "reader", "GET", DEVICES).status_code == 200
            assert ask(world, "nobody", "GET", DEVICES).status_code == 403
    told = [record for record in caplog.records if "policy" in record.getMessage().lower()]
    assert len(told) == 1
    assert str(rules) in told[0].getMessage()
    assert not any(record.exc_info for record in caplog.records)
    assert "\n" not in told[0].getMessage()


def test_a_mended_file_counts_at_once(world: World, rules: Path) -> None:
    write(rules, BROKEN[0])
    assert ask(world, "reader", "GET", DEVICES).status_code == 200
    write(rules, '"autoclave:device:get": "role:manager"\n')
    assert ask(world, "reader", "GET", DEVICES).status_code == 403
    assert ask(world, "manager", "GET", DEVICES).status_code == 200


def test_files_of_a_policy_directory_are_checked_alike(
    tmp_path: Path, rules: Path, keystone: Keystone, caplog: pytest.LogCaptureFixture
) -> None:
    rules.write_text("")
    directory = tmp_path / "policy.d"
    directory.mkdir()
    (directory / "team.yaml").write_text(GOOD)
    world = started(tmp_path, keystone)
    assert ask(world, "reader", "GET", DEVICES).status_code == 200
    (directory / "broken.yaml").write_text('"autoclave:device:get":\n')
    assert ask(world, "nobody", "GET", DEVICES).status_code == 403
    assert f"{directory / 'broken.yaml'}, line 1: " in caplog.text
    world.close()
    with pytest.raises(InvalidConfiguration, match=r"broken\.yaml, line 1"):
        started(tmp_path, keystone)


def test_a_silent_policy_service_is_a_503(
    tmp_path: Path, rules: Path, keystone: Keystone, caplog: pytest.LogCaptureFixture
) -> None:
    rules.write_text(f'"autoclave:device:get": "http://127.0.0.1:{free_port()}/check"\n')
    world = started(tmp_path, keystone)
    assert ask(world, "admin", "GET", DEVICES).status_code == 503
    assert not any(record.exc_info for record in caplog.records)
    world.close()
