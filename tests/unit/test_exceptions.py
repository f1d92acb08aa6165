"""An error about the host comes back from another process as itself."""

import copy

import pytest

from autoclave.exceptions import DeviceInUse, DriverMismatch, EraseTimeout, HardwareError, ToolFailed, ToolTimeout


@pytest.mark.parametrize(
    "error",
    [
        HardwareError("plain"),
        EraseTimeout("too late"),
        DriverMismatch("another driver", "vfio-pci"),
        DeviceInUse("in use", ["by a mount", "by a program"]),
        ToolTimeout("killed", ["nvme", "sanitize"]),
        ToolFailed("refused", ["nvme", "id-ctrl"], 1, 0x1D),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_made_again_from_its_class_and_args_says_the_same(error: HardwareError) -> None:
    again = type(error)(*copy.deepcopy(error.args))
    assert str(again) == str(error)
    assert vars(again) == vars(error)
