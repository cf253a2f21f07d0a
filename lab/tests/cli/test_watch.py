"""`harmax watch`: a tiny training from the command to the film, and the rule that chooses the runs."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from harmax.analysis import explained_variance
from harmax.cli.main import main
from harmax_lab.algorithmic.film import median_seed
from harmax_lab.algorithmic.watch import Glance, Watched, train
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.text_plot import labels_in_plane

Capture = pytest.CaptureFixture[str]


def passing_at(epoch: int | None, *, diverged: bool = False) -> CellResult:
    """Return a run of 100 epochs whose accuracies pass 0.9 at an epoch, or never."""
    curve = np.where(np.arange(100) >= (100 if epoch is None else epoch), 1.0, 0.1)
    curves = {"train_accuracy": curve, "test_accuracy": curve}
    arrays = {"embedding": np.eye(4)[None], "snapshot_epoch": np.array([0])}
    return CellResult(curves, arrays, {"diverged_at": 5 if diverged else None})


def test_the_run_that_passes_at_the_median_time_is_shown() -> None:
    runs = {
        3: passing_at(60),
        1: passing_at(None),
        7: passing_at(10),
        5: passing_at(30),
        9: passing_at(0, diverged=True),
    }
    assert median_seed(runs) == 3
    assert median_seed({seed: run for seed, run in runs.items() if seed != 1}) == 5  # the earlier one of two
    sentence = Watched(("mlp", "harmonic"), runs, 3).sentence
    assert "median of 5 runs is seed 3, which passes 0.9 in test at epoch 61" in sentence
    assert "3 of the runs pass" in sentence


def test_one_command_trains_prints_the_numbers_and_writes_a_film(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARMAX_CORES", "1")
    output = tmp_path / "new" / "film.png"
    assert main(["watch", "modular_addition", "--runs", "2", "--epochs", "2", "--output", str(output)]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[-1] == str(output)
    assert "harmonic MLP: median of 2 runs is seed" in printed.out
    assert "harmonic MLP: epoch 2 of 2, median test accuracy 0." in printed.err
    left = " ".join(line[:46] for line in lines[3:-1]).split()
    assert len(set(left) & set(map(str, range(31)))) >= 28  # a crowded plane may leave out a few
    with Image.open(output) as image:
        assert image.size == (760, 435)
        assert len(image.getcolors(100_000) or []) > 50


def test_a_page_shows_every_run(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARMAX_CORES", "1")
    output = tmp_path / "lattice.html"
    assert main(["watch", "lattice", "--runs", "2", "--epochs", "2", "--output", str(output)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(output)
    data = json.loads(output.read_text().split('id="harmax-document">')[1].split("</script>")[0])
    found = {(run["task"], run["protocol"], run["head"], run["seed"]) for run in data["growth"]}
    assert found == {("lattice", "matched", head, seed) for head in ("linear", "harmonic") for seed in (0, 52)}
    assert data["growth"][0]["epochs"] == [0, 1, 2]
    assert data["verdicts"]
    assert data["costs"]


def test_training_can_be_looked_at_while_it_goes_on() -> None:
    seen: list[tuple[tuple[str, str], Glance]] = []
    task, watched = train("lattice", seeds=[0, 52], epochs=21, look=lambda *one: seen.append(one))
    assert [arm for arm, _ in seen] == [("mlp", "linear")] * 2 + [("mlp", "harmonic")] * 2
    assert [glance.epoch for _, glance in seen] == [20, 21, 20, 21]
    assert all(0 < glance.explained <= 1 and 0 <= glance.accuracy <= 1 for _, glance in seen)
    ends = [side.result.arrays["embedding"][-1] for side in watched[1:]]
    assert np.isfinite(ends).all()
    last = np.median([explained_variance(run.arrays["embedding"][-1]) for run in watched[1].runs.values()])
    assert seen[-1][1].explained == pytest.approx(last, abs=1e-5)
    assert task.name == "lattice"


def test_labels_in_a_plane_do_not_cover_each_other() -> None:
    crowd = np.random.default_rng(0).normal(size=(31, 2)) * 0.01
    crowd[0] = (1, 1)
    words = " ".join(labels_in_plane(crowd, [f"<{number}>" for number in range(31)])).split()
    assert "<0>" in words
    assert all(word[0] == "<" and word[-1] == ">" for word in words)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["modular_adition"], "did you mean 'modular_addition'?"),
        (["lattice", "--protocol", "author"], "did you mean 'authors'?"),
        (["lattice", "--model", "mpl"], "did you mean 'mlp'?"),
        (["lattice", "--runs", "0"], "`--runs` must be between 1 and 20, got 0"),
        (["lattice", "--epochs", "0"], "`--epochs` must be at least 1, got 0"),
        (["lattice", "--output", "film.avi"], "`--output` must end in .gif, .png, .html or .mp4, got 'film.avi'"),
    ],
)
def test_bad_usage_is_refused_before_the_training(arguments: list[str], message: str, capsys: Capture) -> None:
    assert main(["watch", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""
