"""Settings of Sphinx for the site. `make site` gives the folders."""

import harmax

project = "harmax"
author = "the harmax authors"
version = release = harmax.__version__
extensions = ["myst_parser"]
root_doc = "index"

myst_heading_anchors = 4
myst_enable_extensions = ["html_image"]  # the film of the front page has a width
highlight_language = "text"  # of blocks that name none: commands, and what they print

html_theme = "furo"
html_title = "harmax"
html_baseurl = ""
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "xcode"  # has enough contrast
pygments_dark_style = "monokai"
