"""A CSV file becomes columns and classes, or an error that names the column and says what to do."""

import os
from pathlib import Path

import pytest

from harmax.sklearn import HarmonicClassifier, read_csv

GOOD = "kind,height,leaf\n" + "oak,3.1,round\noak,3.3,round\noak,3.0,long\nash,2.0,long\nash,2.2,long\nash,2.1,round\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "plants.csv"
    path.write_text(text)
    return path


def test_a_good_file_trains(tmp_path: Path) -> None:
    x, y = read_csv(write(tmp_path, GOOD), target="kind")
    model = HarmonicClassifier(exponent=8.0, temperature=1.0).fit(x, y)
    assert list(model.centers_.columns) == ["height", "leaf=long", "leaf=round"]
    assert model.explain(x.iloc[0]).predicted == "oak"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "ash,,round\n", r"missing values, got some in column 'height' \(1 rows\), 1 of 7 rows .* drop_missing"),
        (GOOD.replace("ash", "oak"), r"column 'kind' of plants.csv must have at least 2 classes, got 1 \(oak\)"),
        (GOOD.replace("long", "round"), r"column 'leaf' of plants.csv must vary, got 'round' .* drop=\['leaf'\]"),
        (GOOD.replace("kind,", "sort,"), "`column` must be one of sort, height, leaf, got 'kind'"),
        (GOOD.replace(",", ";"), "The file has a single column; is its separator another one"),
        (
            "kind,note\n" + "".join(f"{'ab'[place % 2]},text {place}\n" for place in range(30)),
            r"column 'note' of plants.csv must hold numbers or few categories, got 30 .* drop=\['note'\]",
        ),
        ("kind,x\n0.5,1\n0.7,2\n", "must hold classes, got numbers with fractions such as 0.5"),
        ("", "plants.csv must be a CSV file"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_csv(write(tmp_path, text), target="kind")


def test_missing_rows_and_columns_can_be_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + "ash,,round\n")
    assert len(read_csv(path, target="kind", drop_missing=True)[0]) == 6
    assert list(read_csv(path, target="kind", drop=["height"])[0]) == ["leaf"]


def test_a_pipe_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "plants.csv")
    with pytest.raises(ValueError, match=r"plants.csv must be an ordinary file"):
        read_csv(tmp_path / "plants.csv", target="kind")
