"""The stand-ins for the external tools, as programs of a simulated host."""

import sys
from pathlib import Path

import autoclave

TOOLS = {
    "lvmconfig": ("volume_tools", "lvmconfig"),
    "mdadm": ("volume_tools", "mdadm"),
    "nvme": ("nvme_tool", "main"),
    "shred": ("shred_tool", "main"),
    "vgchange": ("volume_tools", "vgchange"),
    "vgs": ("volume_tools", "vgs"),
}
"""The module and the function that stand in for each."""
_NOT_INSTALLED = ("multipath", "udisksctl")
"""Files that cannot be executed, so that those of this machine are not found."""
_ETC = {
    "lvm/devices/system.devices": "",
    "lvm/lvm.conf": "devices {\n    use_devicesfile = 1\n}\n",
    "mdadm/mdadm.conf": "AUTO -all\n",
}
"""Files of a host that leaves alone what guests have left on drives."""

# -I and -S: nothing of the environment, no site-packages to look through; the tools start in the
# time a real one takes, and need nothing but this package and the standard library.
_TOOL = """#!{python} -IS
import sys
sys.path.append({package!r})
from autoclave.simulator.{module} import {function}
sys.exit({function}({root!r}, sys.argv[1:]))
"""


def write_tools(root: Path) -> None:
    """Put a program for each tool into the ``bin`` of the host in *root*, and their settings into its ``etc``."""
    for name in TOOLS:
        script = root / "bin" / name
        script.write_text(program(root, name))
        script.chmod(0o755)
    for name in _NOT_INSTALLED:
        (root / "bin" / name).touch(mode=0o644)
    for name, text in _ETC.items():
        (root / "etc" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "etc" / name).write_text(text)


def program(root: Path, name: str) -> str:
    """Return the program that stands in for the tool *name* on the host in *root*."""
    package = str(Path(autoclave.__file__).parent.parent)
    module, function = TOOLS[name]
    return _TOOL.format(python=sys.executable, package=package, module=module, function=function, root=str(root))
