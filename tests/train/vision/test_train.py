"""One process: what is trained, logged and left behind."""

import math
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageClassification, ResNetForImageClassification

from harmax import HarmonicHead
from harmax.data.images import load_images
from harmax.errors import DamagedError
from harmax.train.checkpoint import find_checkpoints
from harmax.train.loop import Training
from harmax.train.vision.data import ResidentData, generate_images, open_images
from harmax.train.vision.model import features, load_classifier
from harmax.train.vision.train import VisionRecipe, train_classifier
from harmax.train.world import World, joined
from train.vision.small import assert_same, curve, folder_spec, lines, spec, weights, write_pictures

ALONE = World(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("run")
    train_classifier(spec(), output, device="cpu")
    return output


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.mark.parametrize("head", ["harmonic", "linear"])
def test_class_folders_are_learned_end_to_end(pictures: Path, tmp_path: Path, head: Any) -> None:
    last = train_classifier(folder_spec(pictures, head=head), tmp_path, device="cpu")
    assert last["step"] == 36  # 48 pictures in batches of 8, 6 times
    assert last["top1"] >= 0.9
    assert last["val_loss"] < 0.6
    assert lines(tmp_path)[0]["loss"] == pytest.approx(math.log(3), abs=0.5)  # knows nothing
    model, preparation = load_classifier(tmp_path / "model")
    assert model.config.id2label == {0: "blue", 1: "green", 2: "red"}
    assert preparation.size == 16
    one = np.asarray(Image.open(pictures / "val" / "red" / "0.png").crop((0, 0, 16, 16)))
    assert model(preparation.prepare(torch.from_numpy(one.copy())[None])).logits.argmax().item() == 2


@pytest.mark.parametrize(("head", "scale"), [("harmonic", 1.0), ("linear", 1.0), ("linear", 4.0)])
def test_what_was_evaluated_is_what_was_written(tmp_path: Path, head: Any, scale: float) -> None:
    """The loaded model, on images prepared by its own file, has the last line's numbers."""
    last = train_classifier(spec(head=head, logit_scale=scale), tmp_path, device="cpu")
    assert last["top1"] > 0.6  # of four classes
    model, preparation = load_classifier(tmp_path / "model")
    test = generate_images(256, start=512)
    with torch.no_grad():
        images, targets = preparation.prepare(torch.from_numpy(test.pixels)), torch.from_numpy(test.labels)
        z_BV, x_BD = model(images).logits, features(model, images)
    assert (z_BV.argmax(1) == targets).float().mean().item() == pytest.approx(last["top1"])
    assert torch.nn.functional.cross_entropy(z_BV, targets).item() == pytest.approx(last["val_loss"], rel=1e-5)
    torch.testing.assert_close(model.classifier[1](x_BD), z_BV)
    assert isinstance(model.classifier[1], HarmonicHead) == (head == "harmonic")


def test_a_linear_head_on_the_usual_stem_is_transformers_own(tmp_path: Path) -> None:
    output = tmp_path / "run"
    train_classifier(spec(head="linear", small_stem=False, epochs=1), output, device="cpu")
    model, loading = ResNetForImageClassification.from_pretrained(output / "model", output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert model.config.model_type == "resnet"


def test_the_harmonic_one_is_known_to_auto_classes_with_its_exponent(tmp_path: Path) -> None:
    train_classifier(spec(exponent=9.0, softening=0.01, epochs=1), tmp_path, device="cpu")
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "model")
    assert (model.classifier[1].exponent, model.classifier[1].softening) == (9.0, 0.01)
    logits = model(torch.randn(2, 3, 12, 12), labels=torch.tensor([0, 3]))
    expected = torch.nn.functional.cross_entropy(logits.logits, torch.tensor([0, 3]))
    torch.testing.assert_close(logits.loss, expected)


def test_lines_average_over_all_steps_since_the_last(run: Path, tmp_path: Path) -> None:
    """With a line a step, the lines of every third are the means of three."""
    train_classifier(spec(log_every=1), tmp_path, device="cpu")
    single = {line["step"]: line for line in lines(tmp_path)}
    before = 0
    for line in lines(run):
        steps = range(before + 1, line["step"] + 1)
        assert line["loss"] == pytest.approx(sum(single[step]["loss"] for step in steps) / len(steps), rel=1e-9)
        assert line["accuracy"] == pytest.approx(sum(single[step]["accuracy"] for step in steps) / len(steps))
        before = line["step"]
    assert [line["step"] for line in lines(run) if "top1" in line] == [16, 32]


def test_ctrl_c_writes_a_checkpoint_and_the_run_goes_on_bit_for_bit(run: Path, tmp_path: Path) -> None:
    def interrupt(record: dict[str, Any]) -> None:
        if record["step"] == 9:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train_classifier(spec(), tmp_path, device="cpu", progress=interrupt)
    assert find_checkpoints(tmp_path / "checkpoints")[-1].step == 10
    train_classifier(spec(), tmp_path, device="cpu")
    assert_same(tmp_path, run)
    assert train_classifier(spec(), tmp_path, device="cpu") == lines(run)[-1] | lines(tmp_path)[-1]


def test_pictures_and_policies_go_on_bit_for_bit(pictures: Path, tmp_path: Path) -> None:
    fields = dict(auto_augment="imagenet", epochs=2, momentum=0.0, evaluate_every=0)

    def crash(record: dict[str, Any]) -> None:
        if record["step"] == 9:
            raise RuntimeError("a crash")

    train_classifier(folder_spec(pictures, **fields), tmp_path / "whole", device="cpu")
    with pytest.raises(RuntimeError, match="a crash"):
        train_classifier(folder_spec(pictures, **fields), tmp_path / "parts", device="cpu", progress=crash)
    assert find_checkpoints(tmp_path / "parts" / "checkpoints")[-1].step == 7
    train_classifier(folder_spec(pictures, **fields), tmp_path / "parts", device="cpu")
    assert_same(tmp_path / "parts", tmp_path / "whole")


def test_bf16_is_close_to_float32(run: Path, tmp_path: Path) -> None:
    train_classifier(spec(dtype="bf16", epochs=1), tmp_path, device="cpu")
    ours, theirs = lines(tmp_path)[0], lines(run)[0]
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-2)
    assert ours["loss"] != theirs["loss"]
    assert all(tensor.dtype in (torch.float32, torch.int64) for tensor in weights(tmp_path).values())


def test_numbers_that_are_none_stop_the_run_and_keep_the_checkpoint(tmp_path: Path) -> None:
    def poison(record: dict[str, Any]) -> None:
        if record["step"] == 9:
            with torch.no_grad():
                recipe.model.classifier[1].weight[0, 0] = math.nan

    with joined(spec(), "cpu") as world:
        recipe = VisionRecipe(spec(), world)
        training = Training(recipe, tmp_path)
        with pytest.raises(FloatingPointError, match=r"non-finite loss at step 1\d or .* step 7 is kept"):
            training.run(poison)
    assert find_checkpoints(tmp_path / "checkpoints")[-1].step == 7


@pytest.mark.parametrize("fields", [{"lr": 0.3}, {"head": "linear"}, {"micro_batch": 32}, {"padding": 0}])
def test_a_checkpoint_of_another_spec_is_refused(run: Path, fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(ValueError, match=rf"`{name}` \(.* there, .* here\); give the same values"):
        train_classifier(spec(**fields), run, device="cpu")


def test_another_schedule_resumes_if_asked_to(run: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    shutil.copytree(run, output)
    shutil.rmtree(output / "checkpoints" / "step-00000032")
    lower = spec(lr=0.01, warmup=1.0)
    with pytest.raises(ValueError, match=r"`lr` \(0.2 there, 0.01 here\), .* or add --change-schedule to resume"):
        train_classifier(lower, output, device="cpu")
    with pytest.raises(ValueError, match=r"`momentum` \(0.9 there, 0.5 here\); give the same values, or ano[^,]*$"):
        train_classifier(spec(momentum=0.5), output, device="cpu", change_schedule=True)
    train_classifier(lower, output, device="cpu", change_schedule=True)
    assert curve(output)[:-2] == curve(run)[:-2]  # up to step 28
    assert curve(output)[-1]["lr"] < curve(run)[-3]["lr"] / 10


def test_how_often_may_change(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "checkpoints" / "step-00000028", tmp_path / "checkpoints" / "step-00000028")
    shutil.copy(run / "metrics.jsonl", tmp_path)
    train_classifier(spec(log_every=100, keep=1, channels_last=False), tmp_path, device="cpu")
    assert [found.step for found in find_checkpoints(tmp_path / "checkpoints")] == [32]


def test_a_checkpoint_of_other_images_is_refused(run: Path) -> None:
    train, test = generate_images(512, start=1), generate_images(256, start=513)
    data = ResidentData(spec(), train, test, ALONE)
    with pytest.raises(ValueError, match="written with other data: its train split has the checksum '512 images, sha"):
        Training(VisionRecipe(spec(), ALONE, data=data), run)
    data = ResidentData(spec(), generate_images(512), test, ALONE)
    with pytest.raises(ValueError, match="written with other data: its test split has the checksum '256 images, sha"):
        Training(VisionRecipe(spec(), ALONE, data=data), run)


def test_pictures_may_move_but_not_change_during_a_run(pictures: Path, tmp_path: Path) -> None:
    fields = dict(epochs=1, evaluate_every=0)
    train_classifier(folder_spec(pictures, **fields), tmp_path / "run", device="cpu")
    shutil.copytree(pictures, tmp_path / "moved")
    train_classifier(folder_spec(tmp_path / "moved", **fields), tmp_path / "run", device="cpu")
    shutil.copy(pictures / "val" / "red" / "0.png", tmp_path / "moved" / "train" / "red" / "0.png")
    with pytest.raises(ValueError, match="its train split has the checksum '48 images"):
        train_classifier(folder_spec(tmp_path / "moved", **fields), tmp_path / "run", device="cpu")


def test_a_damaged_checkpoint_is_named(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    (path,) = (tmp_path / "run" / "checkpoints" / "step-00000032").glob("*.safetensors")
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedError, match=r"is not what was written: .* delete .*step-00000032'"):
        train_classifier(spec(), tmp_path / "run", device="cpu")
    shutil.rmtree(path.parent)
    train_classifier(spec(), tmp_path / "run", device="cpu")
    assert_same(tmp_path / "run", run)


def test_grey_digits_train_as_three_channels(tmp_path: Path) -> None:
    last = train_classifier(
        spec(dataset="digits", epochs=3, padding=0, batch=64, micro_batch=64), tmp_path, device="cpu"
    )
    assert last["step"] == 3 * (1437 // 64)
    assert last["top1"] > 0.6
    assert last["top5"] > last["top1"]
    _, preparation = load_classifier(tmp_path / "model")
    pixels = load_images("digits", "train").pixels / 255
    assert preparation.mean == pytest.approx([pixels.mean()] * 3)
    assert preparation.std == pytest.approx([pixels.std()] * 3)
    prepared = preparation.prepare(torch.from_numpy(load_images("digits", "train").pixels))
    assert prepared.shape == (1437, 3, 8, 8)
    assert prepared.mean().item() == pytest.approx(0, abs=1e-4)


def test_the_curve_belongs_to_the_seed(run: Path, tmp_path: Path) -> None:
    train_classifier(spec(seed=1, epochs=1), tmp_path, device="cpu")
    assert curve(tmp_path)[0]["loss"] != curve(run)[0]["loss"]


def test_an_unreadable_picture_is_named(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "pictures", each=4)
    broken = folder / "train" / "green" / "2.png"
    broken.write_bytes(broken.read_bytes()[:50])
    with pytest.raises(DamagedError, match=r"2\.png must be a whole picture"):
        train_classifier(folder_spec(folder), tmp_path / "run", device="cpu")


def test_classes_that_do_not_belong_together(tmp_path: Path, pictures: Path) -> None:
    alone = write_pictures(tmp_path / "alone", colors={"red": (190, 70, 80)})
    with pytest.raises(ValueError, match="must have at least 2 classes to train on, got red alone"):
        open_images(folder_spec(alone), ALONE)
    shutil.copytree(pictures, tmp_path / "odd")
    shutil.move(tmp_path / "odd" / "val" / "red", tmp_path / "odd" / "val" / "rot")
    with pytest.raises(ValueError, match=r"the same classes .* got 3 and 3 \(for example red, rot on one side only\)"):
        open_images(folder_spec(tmp_path / "odd"), ALONE)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dataset": "folder"}, r"`data` must name a folder that has train/ and val/"),
        ({"dataset": "folder", "data": "."}, r"`data` must have train/ \(or a .tar of it\)"),
        ({"dataset": "cifra10"}, r"cifar10"),
        ({"batch": 600, "micro_batch": 600}, r"must hold a `batch` of 600 images, got 512"),
        ({"micro_batch": 5}, r"`batch` \(32\) must be a multiple of `micro_batch` x processes, got 5 x 1"),
        ({"padding": 12}, r"`padding` must be less than the images' side \(12\)"),
        ({"cutout": 12}, r"`cutout` must be less than the images' side \(12\)"),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    if "data" in fields:
        fields = {**fields, "data": tmp_path}
    with pytest.raises(ValueError, match=message):
        train_classifier(spec(**fields), tmp_path / "run", device="cpu")


def test_centers_start_on_class_means_once(tmp_path: Path) -> None:
    """A run that goes on has learned better places for them."""
    settings = spec(center_start="means", epochs=1)
    with joined(settings, "cpu") as world:
        fresh, plain = VisionRecipe(settings, world), VisionRecipe(spec(scale=1.0, epochs=1), world)
        training = Training(fresh, tmp_path / "run")
        Training(plain, tmp_path / "plain").close()
        start = fresh.model.classifier[1].centers.norm(dim=1).mean()
        assert start > 3 * plain.model.classifier[1].centers.norm(dim=1).mean()  # features lie far from the origin
        training.run()
        again = VisionRecipe(settings, world)
        resumed = Training(again, tmp_path / "run")
    assert resumed.step == resumed.steps
    resumed.close()
    assert torch.equal(again.model.classifier[1].centers, weights(tmp_path / "run")["classifier.1.weight"])
