"""What the log tells of a device's life, for who reads nothing else."""

import re

import pytest
from agentworld import HOST, SANITIZING, AgentWorld
from tenant import Tenant

from autoclave.lifecycle import operator
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import Actor

OPERATOR = Cause(Actor.OPERATOR, "ann", reason="noisy fan")


def test_every_turn_of_a_devices_life_is_one_line_that_names_its_slot_and_host(
    one_drive: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "autoclave")
    agent = one_drive.start()
    tenant = Tenant(one_drive)
    tenant.bind(one_drive.ports)
    tenant.delete(one_drive.ports)
    tenant.give_up()
    one_drive.casts.deliver()
    one_drive.outcome()
    operator.hold(one_drive.ports, one_drive.device().uuid, OPERATOR)
    operator.release(one_drive.ports, one_drive.device().uuid, OPERATOR)
    one_drive.sim.pull(SANITIZING)
    agent.period()
    operator.forget(one_drive.ports, one_drive.device().uuid, OPERATOR)
    lines = iter(caplog.messages)
    slot = f"{SANITIZING} of host {HOST}"
    for told in (
        rf"Device .* \({slot}\) is new: available",
        rf"Bound to {tenant.instance}: {slot}",
        rf"Accelerator request .* gave back {slot}\.",
        rf"Device .* \({slot}\) was cleaned by sanitize_block\.",
        r"Device .* is held, says operator ann: noisy fan",
        r"Device .* is held no longer, says operator ann: noisy fan",
        rf"Device .* \({slot}\) is missing\.",
        r"Device .* is forgotten, says operator ann\.",
    ):
        assert any(re.match(told, line) for line in lines), f"{told!r} is not told, or not then: {caplog.messages}"


def test_a_host_on_which_nothing_is_meant_says_so(one_drive: AgentWorld, caplog: pytest.LogCaptureFixture) -> None:
    one_drive.overrides = {("nvme", "device_spec"): ['{"vendor_id": "ffff"}']}
    one_drive.start()
    assert f"No device of {HOST} is meant by the configuration; `autoclave plan` shows why." in caplog.messages
