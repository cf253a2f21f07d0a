"""Writing run folders: every file is written whole or not at all, and a cell's `done` comes last."""

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harmax.errors import DamagedError, needs
from harmax.files import digest, sweep_tree, to_json, write_atomically, write_json
from harmax_lab.kit.store import CELL_FILES, CELL_NAME, CellResult, Run, is_started, read_config, spec_hash


class RunWriter(Run):
    """One run folder, for reading and writing. The constructor makes the folder if there is none.

    Args:
        root: the folder of all runs.
        config: what config.json holds: experiment, version, profile, spec, overrides (what differs from the profile),
            cells (every cell that the run should have, by name), and the source of a view.
    """

    def __init__(self, root: Path | str, config: Mapping[str, Any]) -> None:
        for name in config["cells"]:
            if not CELL_NAME.fullmatch(name):
                raise ValueError(f"a cell's name must match {CELL_NAME.pattern}, got {name!r}; rename the cell.")
        key = spec_hash(config["experiment"], config["version"], config["spec"], source=config.get("source"))
        folder = Path(root) / config["experiment"] / key
        if not is_started(folder):
            write_json(folder / "config.json", config)
        try:
            found = read_config(folder)
            if found["overrides"] and not config["overrides"]:
                # The user's own settings are those of a profile now, so the run becomes the profile's.
                found = {**found, "profile": config["profile"], "overrides": {}}
                write_json(folder / "config.json", found)
            super().__init__(folder, found)
            if set(self.cells) != set(config["cells"]):
                raise DamagedError("config.json lists other cells than the experiment has")
        except DamagedError as error:
            raise DamagedError(f"{folder} must be a whole run folder, but {error}; move or delete it to run.") from None

    def write(self, name: str, result: CellResult, *, seconds: float = 0.0) -> None:
        """Store one cell. It counts as finished only once all its files are on disk."""
        with needs("run"):
            from safetensors.numpy import save

        cell = self.cell_folder(name)
        metrics = (to_json(result.metrics) + "\n").encode()
        contents = (save(_plain_arrays(result.curves)), save(_plain_arrays(result.arrays)), metrics)
        files = dict(zip(CELL_FILES, contents, strict=True))
        for file, data in files.items():
            write_atomically(cell / file, data)
        (cell / "failed.json").unlink(missing_ok=True)
        digests = {file: digest(data) for file, data in files.items()}
        write_json(cell / "done", {"files": digests, "seconds": round(seconds, 3)})
        self.look_again()

    def adopt(self) -> int:
        """Copy cells that runs with equal settings but other seeds have finished. Return how many."""
        adopted = 0
        for folder in filter(is_started, sorted(self.folder.parent.glob("[!.]*/"))):
            missing = set(self.pending)
            if not missing:
                break
            try:
                other = Run.open(folder)
                if folder == self.folder or _settings(other.config) != _settings(self.config):
                    continue
                common = [name for name in other.done if name in missing and other.cells[name] == self.cells[name]]
                environments = other.environments if common else []
            except DamagedError:
                continue  # damage is reported where the run itself is read
            for name in common:
                self._copy(name, other)
            for environment in environments:
                self.add_environment(environment)
            adopted += len(common)
        return adopted

    def _copy(self, name: str, other: Run) -> None:
        source, target = other.cell_folder(name), self.cell_folder(name)
        for file in (*CELL_FILES, "done"):  # known to be whole: `other.done` lists only cells with the right digests
            write_atomically(target / file, (source / file).read_bytes())
        (target / "failed.json").unlink(missing_ok=True)
        self.__dict__.pop("_checked", None)

    def fail(self, name: str, error: str) -> None:
        """Record that an attempt at a cell failed. The next run tries it again."""
        write_json(self.cell_folder(name) / "failed.json", {"error": error})

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Store the summary of the run."""
        write_json(self.folder / "summary.json", summary)

    def write_figures(self, drawn: Mapping[str, tuple[bytes, str]]) -> None:
        """Store figures, as PNGs by name, with their captions; older ones of other names are removed."""
        for name, (picture, _) in drawn.items():
            write_atomically(self.figures / f"{name}.png", picture)
        for path in self.figures.glob("*.png"):
            if path.stem not in drawn:
                path.unlink()
        write_json(self.figures / "captions.json", {name: caption for name, (_, caption) in drawn.items()})

    def add_environment(self, present: Mapping[str, Any]) -> None:
        """Add an environment to env.json, if it is not there yet."""
        known = self.environments
        if present not in known:
            write_json(self.folder / "env.json", [*known, present])

    def partial(self, group: str) -> Path:
        """Return the folder for the partial state of a group of cells."""
        return self.folder / "partial" / hashlib.sha256(group.encode()).hexdigest()[:12]

    def drop_partial(self, group: str | None = None) -> None:
        """Remove the partial state of a group, or of all groups."""
        shutil.rmtree(self.folder / "partial" if group is None else self.partial(group), ignore_errors=True)

    def tidy(self) -> None:
        """Remove what a finished run no longer needs: partial state, and what killed processes left behind."""
        self.drop_partial()
        sweep_tree(self.folder)


def _settings(config: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what decides the numbers of one seed's cells."""
    return config["version"], {name: value for name, value in config["spec"].items() if name != "seeds"}


def _plain_arrays(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    # safetensors stores the bytes in the order of the memory, so views and transposes are copied first.
    return {name: np.array(array, order="C") for name, array in arrays.items()}
