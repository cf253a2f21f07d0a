"""SST-2 and CoLA: both layouts are read as they are, quotes and all, and a part is not taken for the whole."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from harmax.data.folder import find_data
from harmax.data.glue import GLUE_SPLITS, GLUE_TASKS, load_glue
from harmax.errors import DamagedError

SST2 = 'sentence\tlabel\nan " odd film \t1\nno " fun at all \t0\nit \'s fine \t1\n'
COLA = "gj04\t1\t\tThey slept.\ngj04\t0\t*\tThem slept.\n"


def write(folder: Path, name: str, text: str, *, packed: bool = False) -> Path:
    path = folder / (f"{name}.gz" if packed else name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return folder


@pytest.mark.parametrize("packed", [True, False])
def test_quotes_stay_and_blanks_at_the_end_go(tmp_path: Path, packed: bool) -> None:
    found = load_glue("sst2", "train", write(tmp_path, "sst2/train.tsv", SST2, packed=packed), complete=False)
    assert found.sentences == ('an " odd film', 'no " fun at all', "it 's fine")
    assert found.labels.tolist() == [1, 0, 1]
    assert found.labels.dtype == np.int64


def test_the_dev_side_of_cola_is_both_files(tmp_path: Path) -> None:
    write(tmp_path, "cola/in_domain_dev.tsv", COLA)
    with pytest.raises(FileNotFoundError, match="out_of_domain_dev"):
        load_glue("cola", "dev", tmp_path, complete=False)
    write(tmp_path, "cola/out_of_domain_dev.tsv", "clc95\t1\t\tWho left?")  # no line end, as in the real file
    found = load_glue("cola", "dev", tmp_path, complete=False)
    assert found.sentences == ("They slept.", "Them slept.", "Who left?")
    assert found.labels.tolist() == [1, 0, 1]


def test_a_part_of_a_file_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    write(tmp_path, "sst2/train.tsv", SST2)
    with pytest.raises(DamagedError, match=r"sst2/train.tsv must hold 67349 sentences, got 3; .* complete=False"):
        load_glue("sst2", "train", tmp_path)


@pytest.mark.parametrize(
    ("task", "file", "text", "message"),
    [
        ("sst2", "sst2/train.tsv", "sentence\tlabel\nfine\t1\nhalf a li", "2 columns, got 1 in line 3"),
        ("sst2", "sst2/train.tsv", "sentence\tlabel\nfine\t2\n", "got 'fine.t2' in line 2"),
        ("sst2", "sst2/train.tsv", "sentence\tlabel\n \t1\n", "a sentence and a label 0 or 1 in every line"),
        ("sst2", "sst2/train.tsv", "sentence\tlabel\n", "must hold 67349 sentences, got 0"),
        ("cola", "cola/in_domain_train.tsv", COLA + "gj04\t1\tThey.\n", "4 columns, got 3 in line 3"),
    ],
)
def test_what_is_not_a_table_of_sentences_is_refused(
    tmp_path: Path, task: str, file: str, text: str, message: str
) -> None:
    with pytest.raises(DamagedError, match=message):
        load_glue(task, "train", write(tmp_path, file, text), complete=False)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'sst2'"):
        load_glue("sst-2")
    with pytest.raises(ValueError, match="`split` must be one of train, dev, got 'test'"):
        load_glue("cola", "test")


@pytest.mark.skipif(find_data() is None, reason="no data folder")
def test_the_published_files_are_complete() -> None:
    sides = {(task, split): load_glue(task, split) for task in GLUE_TASKS for split in GLUE_SPLITS}
    assert {key: len(side.sentences) for key, side in sides.items()} == {
        ("sst2", "train"): 67349,
        ("sst2", "dev"): 872,
        ("cola", "train"): 8551,
        ("cola", "dev"): 1043,
    }
    assert int(sides["sst2", "dev"].labels.sum()) == 444
    assert int(sides["cola", "train"].labels.sum()) == 6023
    assert sides["cola", "dev"].sentences[-1] == "John talked to Bill about himself."
    assert not any(one != one.strip() for side in sides.values() for one in side.sentences)
