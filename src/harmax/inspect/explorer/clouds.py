"""Large point clouds for programs that are made for them: Embedding Atlas (parquet) and TensorBoard's projector."""

# N points, D features

import re
from pathlib import Path

import numpy as np

from harmax.analysis import project
from harmax.errors import needs
from harmax.files import write_atomically
from harmax.inspect.explorer.parts import Cloud


def write_parquet(cloud: Cloud, folder: Path) -> Path:
    """Write FOLDER/<name>.parquet: columns, the features as `vector`, and two principal components as `x` and `y`.

    `embedding-atlas NAME.parquet --x x --y y` shows it.
    """
    with needs("explore"):
        import pyarrow as pa
        import pyarrow.parquet as pq

    points = np.asarray(cloud.points, dtype=np.float32)
    x, y = project(points).astype(np.float32).T
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(points.reshape(-1)), points.shape[1])
    table = pa.table(
        {**{name: list(column) for name, column in cloud.columns.items()}, "x": x, "y": y, "vector": vectors}
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    path = folder / f"{file_name(cloud.name)}.parquet"
    write_atomically(path, sink.getvalue().to_pybytes())
    return path


def write_projector(clouds: tuple[Cloud, ...], folder: Path) -> list[Path]:
    """Write tables of vectors and of columns, and the file that names them for `tensorboard --logdir FOLDER`."""
    written, config = [], []
    for cloud in clouds:
        name = file_name(cloud.name)
        vectors = "".join(
            "\t".join(f"{value:.7g}" for value in row) + "\n" for row in np.asarray(cloud.points, np.float64)
        )
        rows = ["\t".join(map(_word, row)) for row in zip(*cloud.columns.values(), strict=True)]
        # A table of one column has no header in this format.
        header = ["\t".join(cloud.columns)] if len(cloud.columns) > 1 else []
        for path, text in (
            (folder / f"{name}.vectors.tsv", vectors),
            (folder / f"{name}.metadata.tsv", "\n".join([*header, *rows]) + "\n"),
        ):
            write_atomically(path, text.encode())
            written.append(path)
        config.append(
            f'embeddings {{\n  tensor_name: "{name}"\n  tensor_path: "{name}.vectors.tsv"\n'
            f'  metadata_path: "{name}.metadata.tsv"\n}}\n'
        )
    path = folder / "projector_config.pbtxt"
    write_atomically(path, "".join(config).encode())
    return [*written, path]


def file_name(name: str) -> str:
    """Return a name that every file system takes.

    >>> file_name("Modular addition / seed 0")
    'modular_addition_seed_0'
    """
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "points"


def _word(value: object) -> str:
    return re.sub(r"[\t\r\n]+", " ", str(value))
