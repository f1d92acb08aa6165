"""How Sphinx builds this documentation."""

import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "Autoclave"
project_copyright = "The Autoclave authors"
version = release = metadata.version("autoclave")
smartquotes = False  # commands are copied from tables
extensions = ["oslo_config.sphinxext", "oslo_policy.sphinxext", "drawings", "from_the_rules"]
exclude_patterns = ["_ext"]


def _whole_history() -> bool:
    """Return whether git has all commits, in which reno finds the release notes."""
    if shutil.which("git") is None:
        return False
    command = ["git", "rev-parse", "--is-shallow-repository"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    return done.stdout.strip() == "false"


if _whole_history():
    extensions.append("reno.sphinxext")
else:
    exclude_patterns.append("release-notes.rst")
    suppress_warnings = ["toc.excluded", "ref.doc"]
html_theme = "alabaster"
html_theme_options = {"description": "Never offers a device it cannot vouch for", "page_width": "75em"}
