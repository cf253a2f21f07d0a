"""The recipe: sizes, schedules, heads, what a step does."""

import itertools
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters
from transformers.models.resnet.modeling_resnet import ResNetBasicLayer

from harmax.heads.scale import length, matched_scale
from harmax.kernels import distance
from harmax.train.vision import VISION_PRESETS
from harmax.train.vision.model import ClassificationLoss, HeadLoss, build_model, features
from harmax.train.vision.order import Order, evaluation_shares
from harmax.train.vision.schedule import learning_rate
from harmax.train.vision.step import VisionStep, parameter_groups
from harmax.train.world import World
from train.vision.small import spec

ALONE = World(0, 1, torch.device("cpu"))
CLASSES = ("a", "b", "c", "d", "e", "f", "g")


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_resnet_50_has_the_published_size() -> None:
    names = [str(number) for number in range(1000)]
    with torch.device("meta"):
        linear, harmonic = (
            build_model(VISION_PRESETS["imagenet"].__class__(head=head), names) for head in ("linear", "harmonic")
        )
    assert parameters(linear) == 25_557_032
    assert parameters(harmonic) == 25_557_032 - 1000  # no bias
    assert harmonic.classifier[1].exponent == pytest.approx(2048**0.5)


def test_imagenet_has_the_papers_schedule() -> None:
    preset = VISION_PRESETS["imagenet"]
    assert (preset.model, preset.epochs, preset.batch, preset.lr) == ("resnet50", 90, 256, 0.1)
    assert (preset.momentum, preset.weight_decay, preset.auto_augment) == (0.9, 1e-4, "imagenet")
    assert (preset.dtype, preset.compile, preset.channels_last, preset.image_size) == ("bf16", True, True, 224)
    rates = [learning_rate(preset, 5004 * epoch + 1, 5004) for epoch in range(90)]
    assert rates == pytest.approx([0.1] * 10 + [0.01] * 20 + [1e-3] * 30 + [1e-4] * 20 + [1e-5] * 10)


def test_cifar_keeps_its_32_pixels_until_the_second_stage() -> None:
    model = build_model(VISION_PRESETS["cifar10"], CLASSES)
    assert 11.1e6 < parameters(model) < 11.2e6  # ResNet-18 with a small stem
    hidden = model.resnet(torch.zeros(1, 3, 32, 32), output_hidden_states=True).hidden_states
    assert [tensor.shape[-1] for tensor in hidden] == [32, 32, 16, 8, 4]


@pytest.mark.parametrize("small_stem", [True, False])
def test_both_heads_start_from_the_same_weights(small_stem: bool) -> None:
    linear, harmonic, spread = (
        build_model(spec(small_stem=small_stem, seed=3, **fields), CLASSES).state_dict()
        for fields in ({"head": "linear"}, {"head": "harmonic"}, {"head": "harmonic", "center_std": 2.0})
    )
    assert set(linear) - set(harmonic) == {"classifier.1.bias"}
    assert set(harmonic) - set(linear) == {"classifier.1.settings"}
    assert all(torch.equal(harmonic[name], linear[name]) for name in harmonic.keys() & linear.keys())
    assert all(torch.equal(spread[name], linear[name]) for name in spread if "classifier" not in name)
    assert spread["classifier.1.weight"].std().item() == pytest.approx(2.0, rel=0.25)


def test_building_leaves_random_numbers_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    build_model(spec(), CLASSES)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("head", ["harmonic", "linear"])
def test_the_loss_is_cross_entropy_of_the_logits(head: Any) -> None:
    model = build_model(spec(head=head, scale=0.5 if head == "harmonic" else None), CLASSES)
    module = ClassificationLoss(model, label_smoothing=0.1)
    images, targets = torch.randn(6, 3, 12, 12), torch.tensor([0, 1, 2, 3, 4, 6])
    loss, hits = module(images, targets)
    z_BV = model(images).logits
    torch.testing.assert_close(loss, F.cross_entropy(z_BV, targets, label_smoothing=0.1, reduction="sum"))
    assert hits.tolist() == [(z_BV.argmax(1) == targets).sum().item()]
    module.eval()
    counted = torch.tensor([0, 1, 2, -100, -100, 6])
    loss, hits = module(images, counted)
    z_BV = model(images).logits[counted >= 0]
    kept = counted[counted >= 0]
    torch.testing.assert_close(loss, F.cross_entropy(z_BV, kept, reduction="sum"))
    rank = (z_BV > z_BV.gather(1, kept[:, None])).sum(1)
    assert hits.tolist() == [(rank < 1).sum().item(), (rank < 5).sum().item()]


def test_training_and_evaluation_are_one_graph_each() -> None:
    module = ClassificationLoss(build_model(spec(), CLASSES))
    images, targets = torch.randn(4, 3, 12, 12), torch.tensor([0, 1, 2, 3])
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    for training in (True, False):
        module.train(training)
        expected = ClassificationLoss(module.model).train(training)(images, targets)
        for found, wanted in zip(compiled(images, targets), expected, strict=True):
            torch.testing.assert_close(found, wanted)


# Dynamo looks at `.grad` of what the backbone hands to the head, and hides the warning from everyone but pytest.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_one_compiled_backbone_serves_every_head_seed_exponent_and_set_of_classes() -> None:
    torch._dynamo.reset()
    counters.clear()
    images = torch.randn(4, 3, 12, 12)

    def compiled(classes: int, **fields: Any) -> int:
        settings = spec(**fields)
        own: Any = {"logit_scale": settings.logit_scale, "label_smoothing": settings.label_smoothing}
        module = ClassificationLoss(build_model(settings, CLASSES[:classes]), impl="eager", **own)
        module.compile(backend="eager", dynamic=False)
        plain = ClassificationLoss(build_model(settings, CLASSES[:classes]), **own)
        loss, _ = module(images, torch.tensor([0, 1, 0, 1]))
        torch.testing.assert_close(loss, plain(images, torch.tensor([0, 1, 0, 1]))[0])
        return counters["stats"]["unique_graphs"]

    assert compiled(4, head="harmonic", exponent=8.0) == 2  # backbone and head
    assert compiled(4, head="harmonic", exponent=32.0, seed=5) == 2
    assert compiled(4, head="linear") == 3
    assert compiled(4, head="linear", seed=5, logit_scale=4.0) == 3
    assert compiled(7, head="linear") == 4
    # With softening or smoothing there is one more graph per head, whatever their values.
    assert compiled(4, head="harmonic", softening=0.5, label_smoothing=0.1, scale=0.5) == 5
    assert compiled(4, head="harmonic", softening=2.0, label_smoothing=0.2, exponent=3.0, scale=2.0) == 5
    assert compiled(4, head="linear", label_smoothing=0.1) == 6
    assert compiled(4, head="linear", label_smoothing=0.3, logit_scale=2.0) == 6


@pytest.mark.parametrize("fields", [{"softening": 0.3, "scale": 0.5}, {"label_smoothing": 0.2, "scale": 2.0}])
def test_the_graph_for_all_values_computes_the_same_loss_and_gradients(fields: dict[str, Any]) -> None:
    smoothing = fields.get("label_smoothing", 0.0)
    head = build_model(spec(**fields), CLASSES).classifier[1]
    x_BD, targets = torch.randn(5, head.in_features), torch.tensor([0, 1, 2, -100, 6])
    one, other = (HeadLoss(head, label_smoothing=smoothing, impl=impl) for impl in ("eager", "auto"))
    found, wanted = one(x_BD, targets)[0], other(x_BD, targets)[0]
    torch.testing.assert_close(found, wanted)
    gradients = (torch.autograd.grad(loss, head.weight)[0] for loss in (found, wanted))
    torch.testing.assert_close(*gradients)
    torch.testing.assert_close(one.eval().logits(x_BD), other.eval().logits(x_BD))


def test_the_head_has_a_learning_rate_and_a_decay_of_its_own() -> None:
    for head in ("linear", "harmonic"):
        settings = spec(head=head, lr=0.5, center_lr=3.0, center_decay=0.7, weight_decay=0.3, batch=4, micro_batch=4)
        step = VisionStep(settings, CLASSES, ALONE)
        step(iter([(torch.randn(4, 3, 12, 12), torch.tensor([0, 1, 2, 3]))]), rate=0.5)
        groups = step.optimizer.param_groups
        rates = {id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
        for name, parameter in step.model.named_parameters():
            decay = 0.7 if name == "classifier.1.weight" else 0.3
            assert rates[id(parameter)] == (1.5 if name.startswith("classifier.1") else 0.5, decay), name


def test_odd_settings_of_the_head_are_refused() -> None:
    with pytest.raises(ValueError, match="`center_lr` must be a positive"):
        spec(center_lr=0.0)
    with pytest.raises(ValueError, match="`center_decay` must not be negative"):
        spec(center_decay=-1.0)
    with pytest.raises(ValueError, match="`center_decay` must be left out where `decay_centers` is off"):
        spec(center_decay=0.1, decay_centers=False)


def test_a_compiled_step_forms_distances_outright(monkeypatch: pytest.MonkeyPatch) -> None:
    """No operator that looks at the data, which a GPU would be waited for."""
    seen: list[tuple[int, str]] = []

    def note(self: HeadLoss, x_BD: torch.Tensor, targets_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append((distance.DIRECT_ELEMENTS, self.impl))
        return x_BD.sum(), torch.ones(1)

    monkeypatch.setattr(HeadLoss, "forward", note)
    monkeypatch.setattr(ClassificationLoss, "compile", lambda *_, **__: None)
    batch = torch.randn(2, 3, 12, 12), torch.tensor([0, 1])
    before = distance.DIRECT_ELEMENTS
    for compiles in (True, False):
        step = VisionStep(spec(batch=2, micro_batch=2, compile=compiles), CLASSES, ALONE)
        step(iter([batch]), rate=0.1)
    assert seen == [(sys.maxsize, "eager"), (before, "auto")]
    assert before == distance.DIRECT_ELEMENTS


def test_centers_start_on_the_class_means_of_what_the_untrained_model_sees() -> None:
    settings = spec(batch=8, micro_batch=4, center_start="means")
    step, twin = VisionStep(settings, CLASSES, ALONE), build_model(settings, CLASSES)
    generator = torch.Generator().manual_seed(0)
    batches = [
        (torch.randn(4, 3, 12, 12, generator=generator), torch.tensor(labels))
        for labels in ([0, 1, 2, 3], [0, 0, 5, 3])
    ]
    step.start_head(iter(batches), 2)
    with torch.no_grad():
        x_BD = torch.cat([features(twin, images) for images, _ in batches])
    labels_B = torch.cat([labels for _, labels in batches])
    centers = step.model.classifier[1].centers
    for label in range(len(CLASSES)):
        own = x_BD[labels_B == label]
        wanted = own.mean(0) if len(own) else twin.classifier[1].weight[label]  # 4 and 6 were not among them
        torch.testing.assert_close(centers[label], wanted.detach(), rtol=1e-4, atol=1e-5)


def test_a_head_finds_its_scale_before_the_first_step_and_uses_it_in_loss_and_predictions() -> None:
    settings = spec(batch=4, micro_batch=4)
    step = VisionStep(settings, CLASSES, ALONE)
    images, targets = torch.randn(4, 3, 12, 12), torch.tensor([0, 1, 2, 3])
    step.start_head(iter([(images, targets)]), 1)
    head = step.model.classifier[1]
    x_BD = features(build_model(settings, CLASSES), images)
    wanted = matched_scale(head.exponent, head.in_features, length(x_BD), length(head.weight))
    assert head.scale == wanted != 1
    torch.testing.assert_close(step.logits(x_BD).log_softmax(1), head(x_BD).detach())
    loss, _ = step._loss.head_loss(x_BD, targets)
    torch.testing.assert_close(loss, head(x_BD, targets, reduction="sum"))


@pytest.mark.parametrize(("fields", "scale"), [({"scale": 0.5}, 0.5), ({"softening": 1.0}, None)])
def test_a_given_scale_stays_and_a_softening_has_none(fields: dict[str, Any], scale: float | None) -> None:
    step = VisionStep(spec(batch=4, micro_batch=4, **fields), CLASSES, ALONE)
    step.start_head(iter([(torch.randn(4, 3, 12, 12), torch.tensor([0, 1, 2, 3]))]), 1)
    assert step.model.classifier[1].scale == scale
    assert step._loss.head_loss.scale == (scale or 1.0)


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("head", ["harmonic", "linear"])
def test_blocks_start_as_the_spec_says(zero: bool, head: Any) -> None:
    model = build_model(spec(zero_residual=zero, head=head), CLASSES)
    blocks = [module for module in model.modules() if isinstance(module, ResNetBasicLayer)]
    assert len(blocks) == 2
    for block in blocks:
        x = torch.randn(2, block.layer[0].convolution.in_channels, 6, 6)
        assert torch.equal(block(x), block.shortcut(x).relu()) == zero


def test_features_are_those_of_an_evaluation_without_the_filling() -> None:
    step = VisionStep(spec(), CLASSES, ALONE)
    images = torch.randn(6, 3, 12, 12)
    step.model.resnet(images)  # running statistics of their own
    found = step.features(iter([(images[:4], 4), (images[[4, 5, 5, 5]], 2)]))
    assert step.model.training
    step.model.eval()
    torch.testing.assert_close(found, features(step.model, images).detach())


def test_a_step_is_sgd_on_the_mean_over_the_whole_batch() -> None:
    """Micro-batches of two add up to the gradient of four, each with its own statistics."""
    settings = spec(batch=4, micro_batch=2, head="linear", weight_decay=0.0, momentum=0.0)
    step, twin = VisionStep(settings, CLASSES, ALONE), build_model(settings, CLASSES)
    images, targets = torch.randn(4, 3, 12, 12), torch.tensor([0, 1, 2, 3])
    totals = step(iter([(images[:2], targets[:2]), (images[2:], targets[2:])]), rate=0.5)
    z_BV = torch.cat([twin(images[:2]).logits, twin(images[2:]).logits])
    F.cross_entropy(z_BV, targets).backward()
    for ours, theirs in zip(step.model.parameters(), twin.parameters(), strict=True):
        assert theirs.grad is not None
        torch.testing.assert_close(ours.detach(), theirs.detach() - 0.5 * theirs.grad, rtol=1e-4, atol=1e-5)
    assert totals[0].item() == pytest.approx(F.cross_entropy(z_BV, targets, reduction="sum").item(), rel=1e-5)
    assert totals[2] == 4


def test_decay_reaches_what_the_spec_says() -> None:
    model = build_model(spec(), CLASSES)
    for norms, centers in itertools.product((True, False), repeat=2):
        groups = parameter_groups(model, spec(decay_norms=norms, decay_centers=centers, weight_decay=0.3))
        decayed = {id(p) for group in groups if group["weight_decay"] == 0.3 for p in group["params"]}
        assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
        for name, parameter in model.named_parameters():
            wanted = centers if name == "classifier.1.weight" else norms or "convolution" in name
            assert (id(parameter) in decayed) == wanted, name


def test_an_epoch_shows_every_image_once_and_processes_share_a_step() -> None:
    settings = spec(batch=4, micro_batch=2, epochs=2)
    shares = {rank: list(Order(settings, 11, rank, 2).shares(1)) for rank in (0, 1)}
    alone = list(Order(settings, 11, 0, 1).shares(1))
    assert len(alone) == 2 * len(shares[0]) == 8
    for epoch in (0, 1):
        seen = [index for share in alone if share.epoch == epoch for index in share.chosen]
        assert len(set(seen)) == 8
    assert [share.chosen.tolist() for share in alone] == [
        share.chosen.tolist() for both in zip(*shares.values(), strict=True) for share in both
    ]
    later = list(Order(settings, 11, 0, 1).shares(3))
    assert [share.chosen.tolist() for share in later] == [share.chosen.tolist() for share in alone[4:]]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_an_evaluation_counts_every_image_once(world: int) -> None:
    parts = [list(evaluation_shares(11, 4, rank, world)) for rank in range(world)]
    assert len({len(part) for part in parts}) == 1
    counted = [index for part in parts for chosen, counts in part for index in chosen[counts]]
    assert sorted(counted) == list(range(11))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"head": "hormonic"}, "harmonic"),
        ({"model": "resnet5"}, "resnet50"),
        ({"schedule": "linear"}, "schedule"),
        ({"auto_augment": "image"}, "imagenet"),
        ({"epochs": 0}, "`epochs` must be at least 1, got 0"),
        ({"lr": 0.0}, "`lr` must be a positive, finite number"),
        ({"warmup": 2.0}, r"`warmup` must be shorter than `epochs` \(2\)"),
        ({"weight_decay": -1.0}, "`weight_decay` must not be negative"),
        ({"nesterov": True, "momentum": 0.0}, "`nesterov` must go with `momentum` above 0"),
        ({"label_smoothing": 1.0}, "`label_smoothing` must lie in"),
        ({"exponent": -1.0}, "exponent"),
        ({"head": "linear", "exponent": 3.0}, "must go with the harmonic head, got the linear one"),
        ({"center_std": 0.0}, "`center_std` must be a positive number"),
        ({"center_start": "mean"}, "means"),
        ({"logit_scale": 2.0}, "`logit_scale` must be 1 with the harmonic head"),
        ({"head": "linear", "logit_scale": 0.0}, "`logit_scale` must be a positive, finite number, got 0.0"),
        ({"cutout": -1}, "`cutout` must be at least 0, got -1"),
        ({"head": "linear", "center_start": "means"}, "must go with the harmonic head, got the linear one"),
        ({"center_start": "means", "center_std": 1.0}, "`center_std` must be left out with `center_start` means"),
    ],
)
def test_a_spec_that_cannot_be(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spec(**fields)
