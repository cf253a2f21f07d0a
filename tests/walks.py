"""The pages of docs/first_hour as tests read them: what a reader types, saves and sees, in order."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs/first_hour").glob("[!R]*.md"))
BLOCK = re.compile(r"^( *)```(\w+) ?([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
LONG = "long"
"""Written behind the language of a block whose commands take too long for `make test`."""


@dataclass
class Block:
    """A block of a page: commands, a file to save, or what is seen."""

    language: str
    word: str
    text: str
    seen: list[str] = field(default_factory=list)
    """The lines that the page shows behind the commands."""

    @property
    def is_long(self) -> bool:
        return self.language == "bash" and self.word == LONG


def blocks(page: Path) -> list[Block]:
    """Return commands (`bash`) and files (`python NAME`), with what is seen (`text`) joined to the commands."""
    found: list[Block] = []
    for indent, language, word, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        own = "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))
        if language == "text":
            assert found, f"{page.name}: output before any command"
            assert found[-1].language == "bash", f"{page.name}: output behind a file"
            found[-1].seen += own.splitlines()
        else:
            found.append(Block(language, word, own))
    return found


def commands(block: Block) -> Iterator[list[str]]:
    """Return the words of each command of a block; comments are left out."""
    for line in block.text.splitlines():
        if words := shlex.split(line, comments=True):
            yield words


def missing(seen: list[str], output: str) -> list[str]:
    """Return the lines of a page that the output does not have. Numbers may differ, and so may spaces."""
    lines = {_plain(line) for line in output.splitlines()}
    return [line for line in seen if _plain(line) not in lines | {"", "..."}]


def _plain(line: str) -> str:
    return " ".join(re.sub(r"-?\d[\d.,]*(?:e[-+]?\d+)?", "0", line).split())


def run_bash(block: Block, folder: Path, environment: dict[str, str]) -> str:
    """Run a block as a reader's shell would, and return what it prints."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{block.text}\n{done.stdout}"
    return done.stdout


def save(block: Block, folder: Path) -> None:
    """Save a file that a page shows."""
    (folder / block.word).write_text(block.text, encoding="utf-8")
