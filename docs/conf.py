"""Sphinx configuration of the readers' documentation."""

project = "Theodolite"
copyright = "the Theodolite authors"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "Theodolite"
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]
