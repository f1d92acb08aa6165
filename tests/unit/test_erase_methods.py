"""Each erase method is registered once, and every part that depends on the method reads the registry."""

import pytest

from autoclave.exceptions import HardwareError
from autoclave.hardware.erase.methods import METHODS
from autoclave.hardware.privileged import admission
from autoclave.rules.cleanup_policy import MATRIX, Capabilities, CleanupAction, missing

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
