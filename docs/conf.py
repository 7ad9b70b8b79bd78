"""Sphinx settings. `./dev docs` builds with -W: a broken link or reference is an error."""

import meander

project = "Meander"
author = "the Meander developers"
version = release = meander.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "Meander"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
exclude_patterns = ["_build"]
nitpicky = False
