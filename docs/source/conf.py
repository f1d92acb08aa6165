"""How Sphinx builds this documentation."""

import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "Autoclave"
project_copyright = "The Autoclave authors"
version = release = metadata.version("autoclave")
extensions = ["oslo_config.sphinxext", "oslo_policy.sphinxext", "from_the_rules"]
exclude_patterns = ["_ext"]
html_theme = "alabaster"
html_theme_options = {"description": "Never offers a device it cannot vouch for", "page_width": "75em"}
