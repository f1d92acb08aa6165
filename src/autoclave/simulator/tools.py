"""The stand-ins for the external tools, as programs of a simulated host."""

import sys
from pathlib import Path

import autoclave

TOOLS = {"nvme": "nvme_tool", "shred": "shred_tool"}

# -I and -S: nothing of the environment, no site-packages to look through; the tools start in the
# time a real one takes, and need nothing but this package and the standard library.
_TOOL = """#!{python} -IS
import sys
sys.path.append({package!r})
from autoclave.simulator.{module} import main
sys.exit(main({root!r}, sys.argv[1:]))
"""


def write_tools(root: Path) -> None:
    """Put a program for each tool into the ``bin`` of the host in *root*."""
    for name in TOOLS:
        script = root / "bin" / name
        script.write_text(program(root, name))
        script.chmod(0o755)


def program(root: Path, name: str) -> str:
    """Return the program that stands in for the tool *name* on the host in *root*."""
    package = str(Path(autoclave.__file__).parent.parent)
    return _TOOL.format(python=sys.executable, package=package, module=TOOLS[name], root=str(root))
