"""The speedrun: a script is imported as it is, only its head and loss are exchanged, and a search runs it."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from harmax.data.images import Images
from harmax.functional import harmonic_logits
from harmax.train.vision.data import generate_images
from harmax_lab.search.finals import run_finals
from harmax_lab.search.plan import Trial
from harmax_lab.search.trials import read_table, run_search
from harmax_lab.vision import speedrun
from harmax_lab.vision.harness import DistanceHead, Harness, load_script, write_images
from harmax_lab.vision.speedrun import FAMILIES, ROUNDS, plan

SCRIPT = Path(__file__).with_name("stand_in_speedrun.py")
GOOD = {"exponent": 8.0, "scale": 1.0, "softening": 1.0, "head_lr": 0.1, "head_decay": 0.01, "label_smoothing": 0.1}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sides = generate_images(600, classes=10, side=32), generate_images(100, start=600, classes=10, side=32)
    return write_images(tmp_path_factory.mktemp("images"), *sides)


@pytest.fixture(scope="module")
def harness() -> Harness:
    return Harness(SCRIPT, "cpu")


def test_the_script_itself_and_torch_stay_as_they_are(harness: Harness, images: Path) -> None:
    optimizer, loss, device = torch.optim.SGD, F.cross_entropy, torch.device
    script = harness._script
    assert SCRIPT.read_text() == script.TEXT
    harness.run(harness.build(harmonic=False), images, 0, {})
    assert (torch.optim.SGD, F.cross_entropy, torch.device) == (optimizer, loss, device)
    assert script.PRINTED == []  # what it would print is kept instead


def test_without_settings_the_public_script_runs_as_it_is(harness: Harness, images: Path) -> None:
    """Against the script's own steps, written out."""
    found = harness.run(harness.build(harmonic=False), images, 3, {})
    train, test = (torch.load(images / f"{side}.pt") for side in ("train", "test"))
    x, x_test = (((side["images"].half() / 255).permute(0, 3, 1, 2).float() - 0.5) / 0.2 for side in (train, test))
    torch.manual_seed(3)
    model = harness._script.CifarNet().float()
    torch.manual_seed(3)
    model.reset()
    groups: Any = [{"params": list(model.parameters())[:-1], "lr": 0.01}]
    groups.append({"params": [model.head.weight], "lr": 0.5, "weight_decay": 0.01})
    optimizer = torch.optim.SGD(groups, momentum=0.8, nesterov=True)
    for _ in range(3):
        for chosen in torch.randperm(600).split(60):
            F.cross_entropy(model(x[chosen]), train["labels"][chosen], label_smoothing=0.2, reduction="sum").backward()
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        right = model(x_test).argmax(1) == test["labels"]
    assert found.accuracy_without == pytest.approx(right.float().mean().item(), abs=0.011)
    assert found.diverged_at is None
    assert found.seconds > 0


def test_a_harmonic_head_gives_the_librarys_logits_and_learns(harness: Harness, images: Path) -> None:
    model: Any = harness.build(harmonic=True)
    found = harness.run(model, images, 0, GOOD)
    assert isinstance(model.head, DistanceHead)
    assert found.accuracy > 0.5  # of ten classes
    x_BD = torch.randn(6, 512)
    wanted = harmonic_logits(0.5 * x_BD, model.head.weight, exponent=3.0, softening=2.0)
    for name, value in {"exponent": 3.0, "scale": 0.5, "softening": 2.0}.items():
        getattr(model.head, name).fill_(value)
    torch.testing.assert_close(model.head(x_BD.half() * 0 + x_BD) / 512, wanted)


def test_a_seed_decides_a_run_and_centers_start_with_a_deviation_of_one(harness: Harness, images: Path) -> None:
    model: Any = harness.build(harmonic=True)
    first, again, other = (harness.run(model, images, seed, GOOD) for seed in (5, 5, 6))
    weight = model.head.weight.detach().clone()
    assert first[:2] == again[:2]
    harness.run(model, images, 6, GOOD)
    assert torch.equal(model.head.weight, weight)
    assert other is not again
    model.reset()
    assert model.head.weight.std().item() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    "change", [{"head_lr": 1.0}, {"head_decay": 5.0}, {"label_smoothing": 0.4}, {"logit_scale": 4.0}]
)
def test_every_setting_of_cross_entropy_arrives(harness: Harness, images: Path, change: dict[str, float]) -> None:
    weights = []
    for settings in ({}, change):
        model: nn.Module = harness.build(harmonic=False)
        harness.run(model, images, 0, settings)
        weights.append(model.get_parameter("head.weight").detach().clone())
    assert not torch.allclose(*weights, rtol=1e-3)


def test_a_run_that_diverges_says_when(harness: Harness, images: Path) -> None:
    found = harness.run(harness.build(harmonic=False), images, 0, {"head_lr": 1e38})
    assert found.diverged_at in (1, 2, 3)
    trainer = plan("smoke", images / "t.csv", "cpu", SCRIPT).train
    loss, notes = trainer(Trial("harmonic", 0, "spread", 8, 0, {**GOOD, "head_lr": 1e38}))
    assert loss == math.inf
    assert notes["diverged_at"] is not None


def test_the_script_is_run_in_one_graph_that_serves_all_settings(images: Path) -> None:
    """On a GPU it is compiled; here by the backend that only looks at it."""
    from torch._dynamo.utils import counters

    harness = Harness(SCRIPT, "cpu")
    model: Any = harness.build(harmonic=True)
    torch._dynamo.reset()
    counters.clear()
    model.compile(backend="eager", fullgraph=True, dynamic=False)
    seen = []
    for settings in (GOOD, {**GOOD, "exponent": 3.0, "softening": 0.2, "scale": 0.1, "label_smoothing": 0.3}):
        harness._head, harness._images, harness._settings = model.head, images, settings
        for name in ("exponent", "scale", "softening"):
            getattr(model.head, name).fill_(settings[name])
        harness._script.main(0, model)
        seen.append(counters["stats"]["unique_graphs"])
    assert seen[0] == seen[1] > 0


def test_the_search_and_its_finals_run_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speedrun, "SMOKE_IMAGES", (200, 40))
    path = tmp_path / "t.csv"
    trials = run_search(plan("smoke", path, "cpu", SCRIPT), path)
    assert len(trials) == 2 * ROUNDS["smoke"].runs
    assert [one.seed for one in trials if one.family == "harmonic"] == [0, 0, 1, 1, 2, 3]
    assert not (tmp_path / "t-images/final").exists()  # the search needs no test image
    finals = run_finals(plan("smoke", path, "cpu", SCRIPT), path, seeds=2)
    arms = {**FAMILIES, "public": {}}
    assert sorted((one.family, one.seed) for one in finals) == sorted((arm, at) for arm in arms for at in (100, 101))
    assert read_table(tmp_path / "t-finals.csv", arms) == finals
    public = [one for one in finals if one.family == "public"]
    assert all(one.settings == {} and one.loss == pytest.approx(1 - one.notes["accuracy"]) for one in public)
    with pytest.raises(ValueError, match="`families` must be one of cross_entropy, harmonic, got 'public'"):
        run_search(plan("smoke", path, "cpu", SCRIPT), path, families=("public",))


def test_a_search_holds_a_tenth_of_the_training_images_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def load(name: str, side: str) -> Images:
        asked.append(side)
        return generate_images(400, start=0 if side == "train" else 400, classes=10, side=32)

    monkeypatch.setattr(speedrun, "load_images", load)
    train: Any = plan("full", tmp_path / "t.csv", "cpu", SCRIPT).train
    learned, held = (torch.load(tmp_path / f"t-images/search/{side}.pt") for side in ("train", "test"))
    assert asked == ["train"]
    assert (len(learned["images"]), held["labels"].bincount().tolist()) == (360, [4] * 10)
    whole = {image.tobytes() for image in load("cifar10", "train").pixels}
    assert {image.numpy().tobytes() for side in (learned, held) for image in side["images"]} == whole
    asked.clear()
    folder = train.images(final=True)
    assert asked == ["train", "test"]
    assert np.array_equal(torch.load(folder / "test.pt")["labels"], load("cifar10", "test").labels)


def test_a_missing_or_wrong_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`script` must name the public file"):
        plan("smoke", tmp_path / "t.csv", "cpu")
    with pytest.raises(FileNotFoundError, match="`script` must be the file"):
        load_script(tmp_path / "nowhere.py")
    wrong = tmp_path / "wrong.py"
    wrong.write_text("CifarNet = None\n")
    with pytest.raises(ValueError, match=r"must define .*got none of CifarLoader, main, print_training_details"):
        load_script(wrong)
