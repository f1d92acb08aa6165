"""The commands of the stand-in for nvme-cli that list what the host has."""

from typing import Any

from autoclave.simulator.nvme_dialect import Answer, Dialect
from autoclave.simulator.nvme_options import Options
from autoclave.simulator.slots import DriveSlots

_HOST_ID = "5a1ad000-0000-4000-8000-000000000001"


def list_devices(host: DriveSlots, dialect: Dialect, options: Options) -> Answer:
    """``nvme list``: every block device."""
    devices: list[dict[str, Any]] = []
    inventory = host.inventory
    for disk in sorted((host.sysfs / "block").iterdir()):
        if (disk / "hidden").read_text().strip() != "0":
            continue
        slot = inventory.by_head(int(disk.name.removeprefix("nvme").partition("n")[0]))
        if slot is None:
            continue
        with host.drive(slot.address) as drive:
            state = drive.state
        nsid = int((disk / "nsid").read_text())
        namespace = state.namespaces[nsid]
        device: dict[str, Any] = {
            "NameSpace": nsid,
            "DevicePath": str(host.dev / disk.name),
            "Firmware": state.firmware,
            "ModelNumber": state.model,
            "SerialNumber": state.serial,
            "UsedBytes": namespace.size,
            "MaximumLBA": namespace.blocks,
            "PhysicalSize": namespace.size,
            "SectorSize": namespace.block_size,
        }
        if dialect.version >= (2, 4):
            generic = {"GenericPath": str(host.dev / disk.name.replace("nvme", "ng"))}
            device = {"NameSpace": device.pop("NameSpace"), "DevicePath": device.pop("DevicePath"), **generic, **device}
        if dialect.version < (2, 0):
            device |= {"Index": slot.instance, "ProductName": "Non-Volatile memory controller"}
        devices.append(device)
    if (2, 0) <= dialect.version < (2, 4):
        devices.reverse()
    err = "Could not find pci.ids file\n" if dialect.version < (2, 0) else ""
    if options.as_json:
        return Answer(out=dialect.json({"Devices": devices}), err=err)
    rows = [f"{device['DevicePath']} {device['SerialNumber']:20} {device['ModelNumber']}" for device in devices]
    return Answer(out="".join(f"{row}\n" for row in rows), err=err)


def list_subsystems(host: DriveSlots, dialect: Dialect, options: Options) -> Answer:
    """``nvme list-subsys``: every subsystem with the controllers that lead to it."""
    subsystems: dict[int, dict[str, Any]] = {}
    inventory = host.inventory
    for slot in sorted(inventory.bound(), key=lambda bound: bound.instance or 0):
        head = inventory.heads[slot.spec.drive_id]
        subsystem = subsystems.setdefault(head, {"Name": f"nvme-subsys{head}", "NQN": slot.spec.nqn, "Paths": []})
        details = {"AddressDetails": {"traddr": slot.address}} if dialect.version >= (3, 0) else {}
        path = {"Name": f"nvme{slot.instance}", "Transport": "pcie", "Address": slot.address}
        subsystem["Paths"].append({**path, **details, "State": "live"})
    ordered = [subsystems[head] for head in sorted(subsystems, reverse=(2, 0) <= dialect.version < (2, 4))]
    if not options.as_json:
        lines = []
        for subsystem in ordered:
            lines.append(f"{subsystem['Name']} - NQN={subsystem['NQN']}\n\\")
            lines += [f" +- {path['Name']} pcie {path['Address']} live" for path in subsystem["Paths"]]
        return Answer(out="".join(f"{line}\n" for line in lines))
    if dialect.version < (2, 0):
        return Answer(out=dialect.json({"Subsystems": ordered}))
    nqn = f"nqn.2014-08.org.nvmexpress:uuid:{_HOST_ID}"
    return Answer(out=dialect.json([{"HostNQN": nqn, "HostID": _HOST_ID, "Subsystems": ordered}]))
