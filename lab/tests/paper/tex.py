"""The sentences of the paper's LaTeX source, numbered place by place, as the table of its claims counts them.

A place is a section ("3.2"), an appendix ("C") or a caption ("Fig. 5", "Table 1"). Formulas and references are kept
as words without their commands, so that a quote can be looked for.
"""

import re

SECTION = re.compile(r"\\(section|subsection)(\*?)\{([^}]*)\}")
SKIPPED = ("References", "Acknowledgements")


def sentences(source: str) -> dict[tuple[str, int], str]:
    """Return every sentence by its place and number, counted from 1."""
    body = source[source.index(r"\begin{abstract}") : source.index(r"\end{document}")]
    body = re.sub(r"(?<!\\)%.*", "", body)
    body = re.sub(r"\\begin\{thebibliography\}.*?\\end\{thebibliography\}", "", body, flags=re.DOTALL)
    texts, figures, tables = {"Abstract": ""}, 0, 0
    place, section, subsection, appendix = "Abstract", 0, 0, False
    for part in re.split(r"(\\appendix\b|\\section\*?\{[^}]*\}|\\subsection\*?\{[^}]*\}|\\caption\{)", body):
        if part == r"\appendix":
            appendix, section = True, 0
        elif found := SECTION.fullmatch(part):
            kind, star, title = found.groups()
            if star:
                place = title
            elif kind == "section":
                section, subsection = section + 1, 0
                place = chr(64 + section) if appendix else str(section)
            else:
                subsection += 1
                place = f"{chr(64 + section) if appendix else section}.{subsection}"
            texts.setdefault(place, "")
        elif part == r"\caption{":
            continue
        else:
            texts[place] = texts.get(place, "") + part
    captions = re.findall(r"\\begin\{(figure|table)\*?\}(.*?)\\end\{\1\*?\}", body, flags=re.DOTALL)
    for kind, inside in captions:
        figures, tables = figures + (kind == "figure"), tables + (kind == "table")
        name = f"Fig. {figures}" if kind == "figure" else f"Table {tables}"
        texts[name] = " ".join(map(_braced, re.findall(r"\\caption\{(.*)", inside, flags=re.DOTALL)))
    for name in [name for name in texts if not re.match(r"(Fig|Table)", name)]:
        texts[name] = re.sub(r"\\begin\{(figure|table)\*?\}.*?\\end\{\1\*?\}", " ", texts[name], flags=re.DOTALL)
    found = {}
    for name, text in texts.items():
        if name in SKIPPED:
            continue
        for number, sentence in enumerate(split(plain(text)), 1):
            found[name, number] = sentence
    return found


def _braced(text: str) -> str:
    """Return what stands before the brace that closes a caption."""
    depth = 1
    for index, letter in enumerate(text):
        depth += (letter == "{") - (letter == "}")
        if depth == 0:
            return text[:index]
    return text


def plain(text: str) -> str:
    """Take LaTeX's commands away and keep their words."""
    text = re.sub(
        r"\\(cite|citep|citet|label|vskip|hspace|bibliography|bibliographystyle|nocite)\b\*?(\[[^]]*\])?\{[^}]*\}",
        "",
        text,
    )
    text = re.sub(r"~?\\footnote\{", " (", text)
    text = re.sub(r"\\(begin|end)\{[^}]*\}(\[[^]]*\])?(\{[^}]*\})?", " ", text)
    text = re.sub(r"\\(paragraph|textbf|emph|textit|text|bm|rm|mathbf|underline|textsc)\b\*?", " ", text)
    text = re.sub(r"\\(ref|cref|Cref|eqref)\{([^}]*)\}", r"\2", text)
    text = re.sub(r"\\item\b", " ", text)
    text = re.sub(r"\\[a-zA-Z]+\*?", " ", text)
    text = re.sub(r"\\[^a-zA-Z]", " ", text)
    text = re.sub(r"[{}$~]", " ", text)
    text = text.replace("``", '"').replace("''", '"').replace("\u2011", "-").replace("\u2013", "-")
    return re.sub(r"\s+([.,;:?!])", r"\1", re.sub(r"\s+", " ", text)).strip()


def split(text: str) -> list[str]:
    """Split plain text into sentences."""
    text = re.sub(r"\b(e\.g|i\.e|cf|Fig|Eq|Sec|al|vs)\.", lambda found: found[0].replace(".", "\0"), text)
    parts = re.split(r'(?<=[.?!])["”)]?\s+(?=["“(]?[A-Z0-9(])', text)
    return [part.replace("\0", ".").strip() for part in parts if re.search("[a-zA-Z]{2}", part)]
