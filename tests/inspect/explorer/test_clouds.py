"""Point clouds for other programs hold the points, their columns and a plane."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from harmax.analysis import project
from harmax.inspect.explorer import Cloud, write_parquet, write_projector


@pytest.fixture
def cloud() -> Cloud:
    points = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    return Cloud("Test features", points, {"class": ["a\tb", "c"] * 20, "number": list(range(40))})


def test_parquet_holds_vectors_columns_and_a_plane(cloud: Cloud, tmp_path: Path) -> None:
    path = write_parquet(cloud, tmp_path)
    assert path == tmp_path / "test_features.parquet"
    table = pq.read_table(path)
    np.testing.assert_array_equal(np.stack(table["vector"].to_pylist()), cloud.points)
    np.testing.assert_allclose(np.stack([table["x"], table["y"]], 1), project(cloud.points), atol=1e-5)
    assert table["class"].to_pylist() == cloud.columns["class"]


def test_the_projectors_tables_have_a_line_per_point(cloud: Cloud, tmp_path: Path) -> None:
    vectors, metadata, config = write_projector((cloud,), tmp_path)
    np.testing.assert_allclose(np.loadtxt(vectors, delimiter="\t"), cloud.points, rtol=1e-6)
    lines = metadata.read_text().splitlines()
    assert lines[:3] == ["class\tnumber", "a b\t0", "c\t1"]
    assert len(lines) == 41
    assert 'tensor_path: "test_features.vectors.tsv"' in config.read_text()


def test_one_column_has_no_header(tmp_path: Path) -> None:
    (_, metadata, _) = write_projector((Cloud("one", np.zeros((2, 3)), {"label": ["x", "y"]}),), tmp_path)
    assert metadata.read_text() == "x\ny\n"
