"""One process: what is trained, logged and left behind."""

import math
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2LMHeadModel

import harmax.hf
from harmax.data.text import TokenShards
from harmax.train import PRESETS
from harmax.train.language.cost import flops_per_token
from harmax.train.language.model import NextTokenLoss, build_model
from harmax.train.language.schedule import learning_rate
from harmax.train.language.step import parameter_groups
from harmax.train.language.text import generate_shards
from harmax.train.language.train import LanguageRecipe, pretrain
from harmax.train.loop import Training
from harmax.train.world import joined
from train.language.tiny import assert_same_up_to_rounding, curve, lines, spec, weights


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("run")
    pretrain(spec(), output, device="cpu")
    return output


@pytest.mark.parametrize("head", ["harmonic", "linear", "gaussian"])
def test_it_learns_the_generated_text(tmp_path: Path, head: Any) -> None:
    last = pretrain(spec(head=head, steps=60, lr=2e-2, log_every=20), tmp_path, device="cpu")
    # It knows nothing. A harmonic head starts with logits whose deviation is near 1, which costs half its square.
    assert lines(tmp_path)[0]["loss"] == pytest.approx(math.log(50), abs=0.5 if head == "harmonic" else 0.1)
    assert last["val_loss"] < 3.4
    assert [line["step"] for line in lines(tmp_path) if line["step"] % 20 == 0] == [20, 40, 60]


@pytest.mark.parametrize("micro_batch", [1, 4, 8])
def test_accumulated_gradients_are_those_of_one_batch(run: Path, tmp_path: Path, micro_batch: int) -> None:
    pretrain(spec(micro_batch=micro_batch), tmp_path, device="cpu")
    assert_same_up_to_rounding(tmp_path, run)


def test_transformers_loads_the_model_and_finds_the_same_loss(run: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(run / "model").eval()
    assert isinstance(model, harmax.hf.HarmonicGPT2LMHeadModel)
    val = TokenShards(run / "tokens", "val")
    chosen = torch.linspace(0, val.count_windows(16) - 1, 7, dtype=torch.float64).long().unique().numpy()
    tokens = torch.from_numpy(val.read_windows(chosen, 16))
    with torch.no_grad():
        log_p = model(tokens[:, :-1]).logits
    loss = -log_p.gather(-1, tokens[:, 1:, None]).mean()
    assert lines(run)[-1]["val_loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_the_linear_arm_is_an_ordinary_gpt2(tmp_path: Path) -> None:
    pretrain(spec(head="linear", steps=2), tmp_path, device="cpu")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert type(model) is GPT2LMHeadModel
    assert model.config.vocab_size == 50
    assert model.lm_head.weight.shape == (50, 16)  # 64 rows while it trained


def test_padding_counts_nothing_in_the_linear_loss() -> None:
    settings = spec(head="linear")
    model = build_model(settings)
    assert len(model.lm_head.weight) == 64
    inputs, targets = torch.randint(50, (2, 2, 16))
    NextTokenLoss(model, settings)(inputs, targets).backward()
    logits = model(inputs).logits[..., :50]
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    torch.testing.assert_close(NextTokenLoss(model, settings)(inputs, targets), expected)
    assert model.lm_head.weight.grad is not None
    assert model.lm_head.weight.grad[50:].abs().max() == 0


@pytest.mark.parametrize("tied", [True, False])
def test_all_arms_start_from_the_same_weights(tied: bool) -> None:
    harmonic, linear, gaussian = (
        dict(build_model(spec(head=head, tied=tied)).named_parameters()) for head in ("harmonic", "linear", "gaussian")
    )
    assert harmonic.keys() == linear.keys() == gaussian.keys()
    assert all(torch.equal(harmonic[name][:50], linear[name][:50]) for name in linear)
    assert all(torch.equal(gaussian[name][:50], linear[name][:50]) for name in linear)
    other = build_model(spec(seed=1)).transformer.wte.weight
    assert not torch.equal(other, harmonic["transformer.wte.weight"])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("decay_centers", [True, False])
def test_decay_acts_on_matrices_and_on_centers_if_wanted(tied: bool, decay_centers: bool) -> None:
    settings = spec(tied=tied, decay_centers=decay_centers, learn_exponent=True)
    model = build_model(settings)
    groups = {group["weight_decay"]: group["params"] for group in parameter_groups(model, settings)}
    decayed, others = groups[settings.weight_decay], groups[0.0]
    of = {id(parameter): name for name, parameter in model.named_parameters(remove_duplicate=False)}
    names = {of[id(parameter)] for parameter in decayed}
    assert len(decayed) + len(others) == len(list(model.parameters()))
    assert ("lm_head.weight" in names) == decay_centers
    assert names - {"lm_head.weight"} == {
        name
        for name, parameter in model.named_parameters()
        if parameter.ndim == 2 and name != ("transformer.wte.weight" if tied else "lm_head.weight")
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_what_a_cluster_sends_leave_a_run_that_goes_on(run: Path, tmp_path: Path, number: int) -> None:
    def interrupt(record: dict[str, Any]) -> None:
        if record["step"] == 6:
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt):
        pretrain(spec(), tmp_path, device="cpu", progress=interrupt)
    assert [line["step"] for line in lines(tmp_path)] == [*range(1, 8)]  # the step after the wish is the last
    with joined(spec(), "cpu") as world:
        training = Training(LanguageRecipe(spec(), world), tmp_path)
        assert training.step == 7
        training.close()
    pretrain(spec(), tmp_path, device="cpu")
    assert curve(tmp_path) == curve(run)


def test_a_finished_run_is_not_run_again_but_can_be_made_longer(tmp_path: Path) -> None:
    first = spec(steps=4, decay_steps=8)
    last = pretrain(first, tmp_path, device="cpu")
    before = (tmp_path / "metrics.jsonl").read_bytes()
    assert pretrain(first, tmp_path, device="cpu") == last
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    pretrain(replace(first, steps=8), tmp_path, device="cpu")
    pretrain(replace(first, steps=8), tmp_path / "at once", device="cpu")
    assert [line["loss"] for line in lines(tmp_path)] == [line["loss"] for line in lines(tmp_path / "at once")]


def test_bf16_is_near_float32(run: Path, tmp_path: Path) -> None:
    pretrain(spec(dtype="bf16", steps=3, decay_steps=spec().end_of_decay), tmp_path, device="cpu")
    for ours, theirs in zip(lines(tmp_path), lines(run), strict=False):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-2)
        assert ours["loss"] != theirs["loss"]
    stored = {name: tensor for name, tensor in weights(tmp_path).items() if not name.endswith("settings")}
    assert all(tensor.dtype == torch.float32 for tensor in stored.values())


def test_presets_have_the_papers_schedules() -> None:
    for name, head, peak, end, warmup in (
        ("paper-standard", "linear", 6e-4, 3e-5, 2000),
        ("paper-harmonic", "harmonic", 6e-3, 3e-4, 1000),
    ):
        preset = PRESETS[name]
        assert (preset.head, preset.betas, preset.tied) == (head, (0.9, 0.95), True)
        assert (preset.sequences, preset.context, preset.steps) == (480, 1024, 10_000)
        assert learning_rate(preset, warmup) == pytest.approx(peak)
        assert learning_rate(preset, warmup // 2) == pytest.approx(peak / 2)
        assert learning_rate(preset, 10_000) == pytest.approx(end)
    assert PRESETS["paper-harmonic"].exponent == 28


def test_cost_of_a_token_counts_lookups_for_nothing() -> None:
    tied, untied = (spec(tied=tied) for tied in (True, False))
    parameters = 1_000_000
    assert flops_per_token(untied, parameters + 50 * 16) == flops_per_token(tied, parameters)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"micro_batch": 3}, r"`sequences` \(8\) must be a multiple of `micro_batch` x processes, got 3 x 1"),
        ({"vocab": 50, "data": "text"}, r"`vocab` must be at least 60, the vocabulary of .*, got 50"),
        ({"data": "nowhere"}, r"must hold shards\.json"),
        ({"context": 5000}, r"the val split of .* must hold a sequence of 5000 tokens"),
        (
            {"sequences": 4096},
            r"the train split of .* must hold the 4096 sequences of a step, 16 tokens each, got 65536",
        ),
        ({"generated": False}, r"`data` must name a folder of token shards, got none"),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    (tmp_path / "text").mkdir()
    generate_shards(tmp_path / "text", vocab=60)
    if "data" in fields:
        fields = {**fields, "data": tmp_path / fields["data"]}
    with pytest.raises(ValueError, match=message):
        pretrain(spec(**fields), tmp_path / "run", device="cpu")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": 0}, "`steps` must be at least 1, got 0"),
        ({"lr": 1e-4, "min_lr": 1e-3}, "`lr` must be positive and at least `min_lr`"),
        ({"n_head": 3}, "`n_embd` must be a multiple of `n_head`"),
        ({"clip": -1.0}, "`clip` must not be negative"),
        ({"exponent": -2.0}, "exponent"),
        ({"learn_exponent": True, "head": "linear"}, "`learn_exponent` must go with the harmonic head"),
    ],
)
def test_a_spec_that_cannot_be(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spec(**fields)
