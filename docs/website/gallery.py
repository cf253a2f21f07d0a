"""The gallery: each example with its output and its pictures, as they came out when the site was built."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from pages.site import REPOSITORY, ROOT
from website.contents import NOT_EXECUTED, description
from website.links import PICTURES

OUTPUT = "output.txt"
INDEX = "examples/index"
INTRODUCTION = f"""# Gallery

Each page is a script of the folder [examples]({REPOSITORY}/tree/main/examples), with the output and the pictures that
it gave when this site was built. Scripts that need trained weights are shown without output.
"""


def executed(example: Path, cache: Path) -> Path:
    """Return the folder with what an example printed and drew; run it only if it or harmax has changed since."""
    folder = cache / f"{example.stem}-{fingerprint(example, *(ROOT / 'src/harmax').rglob('*.py'))}"
    if folder.is_dir():
        return folder
    for old in cache.glob(f"{example.stem}-*"):
        shutil.rmtree(old)
    with tempfile.TemporaryDirectory() as temporary:
        # One thread: other numbers of threads add in another order, and so change the last digits.
        done = subprocess.run(
            [sys.executable, example],
            cwd=temporary,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{example.name} must run when the site is built, and failed:\n{done.stderr}")
        Path(temporary, OUTPUT).write_text(done.stdout, encoding="utf-8")
        shutil.copytree(temporary, folder)
    return folder


def fingerprint(*files: Path) -> str:
    """Return a digest of files, and of the versions that their numbers depend on."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {version('torch')} {version('numpy')}".encode())
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def page_of(example: Path, found: Path | None) -> tuple[str, list[Path]]:
    """Return an example's page, and its pictures; `found` is what `executed` returned, None if it was not executed."""
    title, rest = description(example)
    parts = [f"# {title}", f"```text\n{rest.strip()}\n```"]
    pictures = sorted(path for path in found.iterdir() if path.suffix in PICTURES) if found else []
    if found:
        printed = (found / OUTPUT).read_text(encoding="utf-8").strip()
        parts += ["## What it prints", f"```text\n{printed}\n```"]
    else:
        parts += ["## What it prints", f"*Not executed for this site.* {NOT_EXECUTED[example.stem]}"]
    parts += [f"![What {example.name} draws]({path.name})" for path in pictures]
    code = example.read_text(encoding="utf-8").split('"""', 2)[2]  # the docstring stands above
    parts += ["## The script", f"```python\n{code.strip()}\n```"]
    return "\n\n".join(parts) + "\n", pictures


def index_page(pictures: dict[Path, list[Path]]) -> str:
    """Return the first page of the gallery: every example with its picture."""
    parts = [INTRODUCTION]
    for example, drawn in pictures.items():
        about = description(example)[0]
        parts.append(f"## [{example.stem.replace('_', ' ')}]({example.stem}.md)\n\n{about}")
        parts += [f"![What {example.name} draws]({path.name})" for path in drawn]
        if example.stem in NOT_EXECUTED:
            parts.append(f"*Not executed here.* {NOT_EXECUTED[example.stem]}")
    return "\n\n".join(parts) + "\n"
