"""`harmax explore`: one HTML file that shows runs, classifiers, verdicts and costs."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from harmax.cli.image_flags import ImageFlags
from harmax.cli.usage import UsageError, print_json
from harmax.errors import needs
from harmax.files import write_atomically
from harmax.inspect.explorer.assemble import Assembled, assemble
from harmax.inspect.explorer.clouds import write_parquet, write_projector
from harmax.inspect.explorer.page import page_of
from harmax.inspect.explorer.parts import ExplorerOptions


@dataclass(frozen=True)
class Explore(ImageFlags):
    """Write one HTML file to look at what was learned. It opens from disk and loads nothing from a network.

    harmax explore

    harmax explore runs/cifar10 --output cifar10.html
    """

    source: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="[SOURCE]")] = None
    """The output of `harmax vision`; with harmax-lab also a run folder or a folder of runs. Left out: runs, if there
    is such a folder. Without a source the page has the views that need none."""
    output: Path = Path("explore.html")
    """The file to write."""
    seeds: int = 3
    """At most this many seeds per model in "Watch it grow"."""
    examples: int = 120
    """Test examples to show per classifier."""
    neighbors: int = 5
    """Training examples to show for each center."""
    small: bool = False
    """Leave out the figures of the published results, which are 3 MB."""
    parquet: Path | None = None
    """Also write point clouds into this folder, as .parquet for Embedding Atlas."""
    projector: Path | None = None
    """Also write point clouds into this folder, as .tsv for TensorBoard's projector."""
    json: bool = False
    """Print what was written as JSON."""

    def __call__(self) -> int:
        """Read, write and print the path; 1 if a source could not be read, and the page says so."""
        self._check()
        found = assemble(self.source, self._options())
        page = page_of(found.document).encode()
        write_atomically(self.output, page)
        files = [self.output, *self._write_clouds(found)]
        for note in found.document.notes:
            print(f"harmax: {note}", file=sys.stderr)
        if self.json:
            one = found.document
            counts = {"runs": len(one.growth), "classifiers": len(one.classifiers), "costs": len(one.costs)}
            claims = len(one.verdicts.claims) if one.verdicts else 0
            print_json(
                {"files": list(map(str, files)), "bytes": len(page), **counts, "claims": claims, "notes": one.notes}
            )
        else:
            for file in files:
                print(file)
        return 1 if found.problems else 0

    def _check(self) -> None:
        if self.output.suffix.lower() not in (".html", ".htm") or self.output.is_dir():
            raise UsageError(f"`--output` must be an .html file, got {str(self.output)!r}; name one.")
        for name, value in (("seeds", self.seeds), ("examples", self.examples), ("neighbors", self.neighbors)):
            if value < 1:
                raise UsageError(f"`--{name}` must be at least 1, got {value}; leave it out for the usual number.")
        for name, folder in (("parquet", self.parquet), ("projector", self.projector)):
            if folder is not None and folder.exists() and not folder.is_dir():
                raise UsageError(f"`--{name}` must be a folder, got the file {str(folder)!r}; name another.")
        if self.parquet is not None:
            with needs("explore"):  # a missing package is better noticed before the work
                import pyarrow  # noqa: F401

    def _options(self) -> ExplorerOptions:
        return ExplorerOptions(
            seeds=self.seeds,
            neighbors=self.neighbors,
            examples=self.examples,
            pictures=not self.small,
            clouds=self.parquet is not None or self.projector is not None,
            open_classifier=self.open_classifier,
        )

    def _write_clouds(self, found: Assembled) -> list[Path]:
        written: list[Path] = []
        if not found.clouds and (self.parquet or self.projector):
            print("harmax: this source has no point cloud, so none was written.", file=sys.stderr)
        elif self.parquet is not None:
            written += [write_parquet(cloud, self.parquet) for cloud in found.clouds]
        if found.clouds and self.projector is not None:
            written += write_projector(found.clouds, self.projector)
        return written
