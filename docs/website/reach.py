"""What Sphinx leaves out for people who use a keyboard or a screen reader."""

from pathlib import Path

ADDED = {
    "<pre>": '<pre tabindex="0">',  # a keyboard can scroll what is wider than the screen
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
}


def make_reachable(folder: Path) -> None:
    """Add it to every page."""
    for path in folder.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        for plain, whole in ADDED.items():
            text = text.replace(plain, whole)
        path.write_text(text, encoding="utf-8")
