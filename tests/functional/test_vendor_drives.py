"""Drives of a vendor that Cyborg had a driver for, with the generic one."""

from pathlib import Path

from agentworld import SANITIZING, SECRET, AgentWorld, sanitizing_drive

from autoclave.conf import new_config
from autoclave.rules.device_lifecycle import DeviceState

EXAMPLE = Path(__file__).parents[2] / "docs" / "source" / "examples" / "inspur.conf"


def test_the_documented_configuration_for_inspur_drives_offers_and_erases_them_and_no_others(tmp_path: Path) -> None:
    other = "0000:43:00.0"
    drives = [sanitizing_drive(vendor="1bd4", product="1001"), sanitizing_drive(other, "SER-X", vendor="144d")]
    world = AgentWorld(tmp_path, drives)
    world.overrides["nvme", "device_spec"] = new_config([str(EXAMPLE)]).nvme.device_spec
    try:
        world.start()
        world.assert_offered()
        assert set(world.onlooker.get_inventories(world.provider().uuid).records) == {"CUSTOM_NVME_1BD4_1001"}
        assert world.find_device(other) is None
        world.bind()
        assert world.sim.find(SANITIZING, SECRET)
        assert world.clean().device_state is DeviceState.AVAILABLE
        assert not world.sim.find(SANITIZING, SECRET)
        world.assert_offered()
    finally:
        world.close()
