"""Each erase method is registered once, and every part that depends on the method reads the registry."""

import json

import pytest

from autoclave.exceptions import HardwareError
from autoclave.hardware.erase.methods import FUNCTION_METHODS, METHODS
from autoclave.hardware.privileged import admission
from autoclave.rules.cleanup_policy import MATRIX, Capabilities, CleanupAction, missing
from autoclave.rules.pci_inventory import parse_pci_device_spec
from autoclave.rules.reclaim import COMMAND, RESET, ReclaimPolicy

NOTHING = Capabilities(crypto_erase=False, block_erase=False, write_zeroes=False, namespace_management=False)


def test_every_action_of_the_policy_has_a_method() -> None:
    assert set(METHODS) == set(CleanupAction)
    assert {action for allowed in MATRIX.values() for action in allowed} == set(CleanupAction)


def test_only_shred_needs_nothing_of_a_controller() -> None:
    assert [action for action in CleanupAction if missing(action, NOTHING) is None] == [CleanupAction.SHRED]


@pytest.mark.parametrize(
    "argv",
    [
        ["nvme", "sanitize", "/dev/nvme0", "--sanact=2"],
        ["nvme", "sanitize-log", "/dev/nvme0", "-o", "json"],
        ["nvme", "format", "/dev/nvme0", "-n", "1", "--lbaf=0", "--ses=1", "--force"],
        ["shred", "--iterations=0", "--zero", "--verbose", "/dev/nvme0n1"],
    ],
)
def test_a_command_passes_only_because_a_method_runs_it(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    admission.command(argv)
    monkeypatch.setattr(admission, "METHODS", {})
    monkeypatch.setattr(admission, "COMMANDS", admission._commands())
    with pytest.raises(HardwareError, match="refuses to run"):
        admission.command(argv)


def test_an_attribute_is_written_only_because_a_method_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    admission.attribute("reset", "1")
    monkeypatch.setattr(admission, "FUNCTION_METHODS", {})
    with pytest.raises(HardwareError, match="does not write"):
        admission.attribute("reset", "1")


def test_every_clear_action_has_a_method() -> None:
    keys = {"reclaim": "erase", "clear_command": ["/etc/autoclave/clear.d/x"]}
    for action in FUNCTION_METHODS:
        entry = {"address": "*", "clear_action": action, **keys}
        if action != COMMAND:
            del entry["clear_command"]
        [spec] = parse_pci_device_spec([json.dumps(entry)])
        assert ReclaimPolicy.of(spec.extra).cleanup_action == action
    assert set(FUNCTION_METHODS) == {RESET, COMMAND}
