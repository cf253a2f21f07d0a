"""Pack what `python -m harmax` needs besides torch and transformers, for a machine that has only these.

    python tools/portable.py carry/site                    for the Python that runs this
    python tools/portable.py carry/site --python 3.12      for another one, on Linux x86-64
    python tools/portable.py carry/site --pillow           with Pillow (21 of 28 MiB), which torchvision brings too

There, with the checkout and the folder side by side:

    PYTHONPATH=src:lab/src:carry/site python -m harmax search language --smoke

The folder has the packages below and the entry points by which harmax finds its laboratory. scipy is not among them: it
is large, and only tables of intervals need it, which can be made elsewhere from the csv of runs.
"""

import argparse
import platform
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PURE = ("tyro", "docstring-parser", "typeguard", "typing-extensions", "rich", "markdown-it-py", "mdurl", "pygments")
BUILT = ("safetensors",)
"""For one Python and one kind of machine."""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def pack(folder: Path, python: str, *, pillow: bool) -> None:
    """Install the packages into a folder, and write the laboratory's entry points."""
    how = ["--python-version", python, "--only-binary", ":all:", "--implementation", "cp"]
    how += [word for name in PLATFORMS for word in ("--platform", name)]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--upgrade", *how]
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*command, *constraints, "--target", str(folder), *PURE, *BUILT, *("pillow",) * pillow], check=True)
    project = tomllib.loads((ROOT / "lab/pyproject.toml").read_text())["project"]
    own = folder / "harmax_lab-0.dist-info"
    own.mkdir(exist_ok=True)
    (own / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
    groups = project["entry-points"].items()
    text = "\n".join(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in found.items()) for group, found in groups)
    (own / "entry_points.txt").write_text(text)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default=".".join(platform.python_version_tuple()[:2]))
    parser.add_argument("--pillow", action="store_true")
    chosen = parser.parse_args()
    pack(chosen.folder, chosen.python, pillow=chosen.pillow)
    size = sum(path.stat().st_size for path in chosen.folder.rglob("*") if path.is_file())
    print(f"{chosen.folder}: {size / 2**20:.1f} MiB for Python {chosen.python}")


if __name__ == "__main__":
    main()
