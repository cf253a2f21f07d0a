"""Text of results on Markdown pages."""

import html


def to_markdown(text: str) -> str:
    """Return text as one line of a page, in which the data of a run cannot start a tag, a link or a picture.

    >>> print(to_markdown("a < b, [c](d)\\n# e"))
    a &lt; b, [c]\\(d) # e
    """
    return " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace("](", "]\\(")


def from_markdown(text: str) -> str:
    """Return the text that `to_markdown` was given.

    >>> from_markdown(to_markdown("a < b, [c](d)"))
    'a < b, [c](d)'
    """
    return html.unescape(text.replace("]\\(", "]("))
