"""GPT-2 with either head: training in pieces, the measures after it, and what is made of the losses."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from harmax.data.text import TokenShards
from harmax.figures import house_style
from harmax.inspect import load_language_model
from harmax.inspect.embedding import silent
from harmax_lab.experiments import run
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED
from harmax_lab.kit.engine import Event
from harmax_lab.kit.store import CellResult, Run
from harmax_lab.language import gpt2, pretraining, probing
from harmax_lab.language.arms import HARMONIC, NANOGPT, STANDARD
from harmax_lab.language.gpt2 import CLAIMS, EXPERIMENT, ArmCell, LanguageSpec, WholeWords
from harmax_lab.language.pretraining import TrainingSpec
from token_shards import write_shards

SMOKE = EXPERIMENT.profiles["smoke"]
FULL = replace(EXPERIMENT.profiles["full"], seeds=(0, 1, 2))


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Run:
    found = run(EXPERIMENT, smoke=True, folder=tmp_path_factory.mktemp("smoke"), device="cpu")
    assert not found.failed
    return found


def assert_same(one: Run, other: Run) -> None:
    assert one.results.keys() == other.results.keys()
    for name, result in one.results.items():
        theirs = other.results[name]
        for kind in ("curves", "arrays"):
            left, right = getattr(result, kind), getattr(theirs, kind)
            assert left.keys() == right.keys()
            for key in left:
                np.testing.assert_array_equal(left[key], right[key], err_msg=f"{name} {key}")
        ours, others = ({k: v for k, v in found.metrics.items() if k != "cost"} for found in (result, theirs))
        assert ours == others


def test_both_arms_are_trained_and_measured(smoke: Run) -> None:
    results = EXPERIMENT.by_cell(SMOKE, smoke.results)
    assert {cell.arm for cell in results} == {STANDARD, HARMONIC, NANOGPT}
    recipe = results.pop(ArmCell(NANOGPT, 0))
    assert not recipe.arrays
    assert recipe.curves["step"].tolist() == [1, 2, 3, 4]  # of twice as many sequences
    assert recipe.metrics["lr"] == 6e-4
    for result in results.values():
        measures = {key.split("/")[0] for key in result.arrays}
        assert {"parallelograms", "centers", "layers", "probes"} <= measures
        assert result.curves["step"].tolist() == list(range(1, 9))
        assert result.curves["val_step"].tolist() == [4, 8]
        assert result.metrics["embedded"]
        assert sum(array.nbytes for array in result.arrays.values()) < 6 * 2**20
    standard, harmonic = (results[ArmCell(arm, 0)] for arm in (STANDARD, HARMONIC))
    assert standard.metrics["exponent"] is None
    assert harmonic.metrics["exponent"] == SMOKE.exponent
    # The same quadruples and probes, so that the arms can be compared one by one.
    key = next(key for key in standard.arrays if key.endswith("/pairs"))
    np.testing.assert_array_equal(standard.arrays[key], harmonic.arrays[key])


@pytest.mark.parametrize("arm", [STANDARD, HARMONIC])
def test_the_losses_are_those_of_the_saved_model(arm: str, tmp_path: Path) -> None:
    fields, lr = gpt2.arms(SMOKE)[arm]
    found = pretraining.train_model(SMOKE, fields, lr, seed=3, output=tmp_path, device="cpu", progress=silent)
    model = load_language_model(tmp_path / "model")
    losses = {}
    for split in ("train", "val"):
        shards = TokenShards(tmp_path / "tokens", split)
        count = shards.count_windows(SMOKE.context)
        chosen = np.linspace(0, count - 1, SMOKE.evaluation_sequences).astype(int)
        tokens = torch.from_numpy(shards.read_windows(chosen, SMOKE.context))
        with torch.no_grad():
            logits = model(tokens[:, :-1]).logits[..., : SMOKE.vocab].double()
        losses[split] = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item()
    assert found.metrics["val_loss"] == pytest.approx(losses["val"], abs=1e-5)
    assert found.metrics["train_loss"] == pytest.approx(losses["train"], abs=1e-5)
    assert found.metrics["gap"] == pytest.approx(losses["val"] - losses["train"], abs=1e-5)
    windows = TokenShards(tmp_path / "tokens").count_windows(SMOKE.context)
    assert found.metrics["times_seen"] == pytest.approx(SMOKE.steps * SMOKE.sequences / windows)


def test_a_training_that_stops_midway_goes_on_to_the_same_numbers(smoke: Run, tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if "step 5 of" in event.message:
            raise RuntimeError("the machine is wanted elsewhere")

    stopped = run(EXPERIMENT, smoke=True, folder=tmp_path, device="cpu", progress=stop)
    assert len(stopped.failed) == 2  # nanoGPT's recipe has four steps
    heard: list[str] = []
    resumed = run(EXPERIMENT, smoke=True, folder=tmp_path, device="cpu", progress=lambda e: heard.append(e.message))
    assert not any("step 4 of" in message for message in heard)
    assert sum("step 5 of" in message for message in heard) == 2
    assert_same(resumed, smoke)


def test_a_failed_measure_costs_no_training(smoke: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise MemoryError("no probes today")

    with monkeypatch.context() as patched:
        patched.setattr(probing, "measure_probes", fail)
        failed = run(EXPERIMENT, smoke=True, folder=tmp_path, device="cpu")
    assert len(failed.failed) == 2
    assert all("no probes today" in error for error in failed.failed.values())
    models = list(failed.folder.glob("partial/*/*/model/model.safetensors"))
    assert len(models) == 2
    heard: list[str] = []
    measured = run(EXPERIMENT, smoke=True, folder=tmp_path, device="cpu", progress=lambda e: heard.append(e.message))
    assert not any("step" in message for message in heard)
    assert_same(measured, smoke)


def test_without_the_data_folder_nothing_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARMAX_DATA", raising=False)
    monkeypatch.chdir(tmp_path)  # where there is no ../shared/data
    spec = replace(SMOKE, embedded=False)
    broken = replace(EXPERIMENT, profiles={**EXPERIMENT.profiles, "smoke": spec})
    found = run(broken, smoke=True, folder=tmp_path / "runs", device="cpu")
    assert len(found.failed) == 3
    assert all("HARMAX_DATA" in error for error in found.failed.values())
    assert not list(found.folder.glob("partial/*/*/metrics.jsonl"))
    with pytest.raises(FileNotFoundError, match="HARMAX_DATA"):
        pretraining.unpacked_corpus()


def test_the_corpus_is_unpacked_once_and_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    tokens = {"train_000": generator.integers(50257, size=400), "val": generator.integers(50257, size=100)}
    write_shards(tmp_path / "data" / "corpus", **tokens)
    monkeypatch.setenv("HARMAX_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HARMAX_CACHE", str(tmp_path / "cache"))
    folder = pretraining.unpacked_corpus()
    assert folder.parent == tmp_path / "cache"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]  # nothing half done lies beside it
    with monkeypatch.context() as patched:
        patched.delattr(pretraining, "unpack_corpus")
        assert pretraining.unpacked_corpus() == folder
    write_shards(tmp_path / "data" / "corpus", train_001=generator.integers(50257, size=300))
    assert pretraining.unpacked_corpus() != folder  # another corpus

    monkeypatch.setattr(pretraining, "unpacked_corpus", lambda: folder)
    sizes = dict(n_layer=1, n_head=1, n_embd=4, context=10, sequences=4, micro_batch=4, steps=5, warmup=1)
    spec = TrainingSpec(**sizes, dtype="float32", compile=False, log_every=1, evaluate_every=5, evaluation_sequences=4)
    output = tmp_path / "run"
    result = pretraining.train_model(
        spec, {"head": "linear"}, lr=1e-3, seed=0, output=output, device="cpu", progress=silent
    )
    assert not (output / "tokens").exists()
    assert result.metrics["times_seen"] == pytest.approx(5 * 4 / 39)
    assert result.metrics["val_loss"] == pytest.approx(np.log(50257), abs=0.5)


def test_whole_words_have_tokens_of_their_own() -> None:
    encoding = WholeWords(128)
    pairs = [word for pairs in gpt2.SAMPLE_PAIRS.values() for pair in pairs for word in pair]
    tokens = [encoding.encode(word) for word in pairs]
    assert all(len(one) == 1 for one in tokens)
    assert len({one[0] for one in tokens}) == len(set(pairs))
    others = encoding.encode(" something quite different")
    assert len(others) == 3
    assert all(len(set(pairs)) <= token < 128 for token in others)
    with pytest.raises(ValueError, match="`vocab` must be larger than"):
        WholeWords(20)


def planted(spec: LanguageSpec, change: Callable[[ArmCell], dict[str, float]] = lambda cell: {}) -> dict[ArmCell, Any]:
    results = {}
    for cell in gpt2.cells(spec):
        loss = 3.50 - 0.03 * (cell.arm == HARMONIC) + 0.01 * cell.seed
        step = np.arange(10, 1001, 10)
        curve = (loss + 7 * np.exp(-step / 120)).astype(np.float32)
        curves = {"step": step, "loss": curve, "val_step": step[9::10], "val_loss": curve[9::10] + 0.05}
        gap = 0.10 - 0.02 * (cell.arm == HARMONIC)
        metrics = {"val_loss": loss, "train_loss": loss - gap, "gap": gap, "times_seen": 2.76, "exponent": None}
        cost = {"tokens_per_s": 5e5, "training_seconds": 520.0, "memory_gib": 21.0, "mfu": 0.43}
        results[cell] = CellResult(curves, {}, {**metrics, "cost": cost, **change(cell)})
    return results


def verdicts(spec: LanguageSpec, results: dict[ArmCell, CellResult]) -> dict[str, str]:
    return {verdict.claim: verdict.verdict for verdict in EXPERIMENT.summarize(spec, results).verdicts}


def test_every_claim_can_hold_and_break() -> None:
    assert verdicts(FULL, planted(FULL)) == {claim.id: REPRODUCED for claim in CLAIMS}
    for claim, arm, change in (
        ("lower_loss", HARMONIC, {"val_loss": 5.0}),
        ("smaller_gap", HARMONIC, {"gap": 5.0}),
        ("strong_baseline", NANOGPT, {"val_loss": 3.44}),
    ):
        found = verdicts(FULL, planted(FULL, lambda cell, a=arm, c=change: c if cell.arm == a else {}))
        assert [name for name, verdict in found.items() if verdict == NOT_REPRODUCED] == [claim]


def test_one_seed_or_few_tokens_decide_nothing() -> None:
    alone = replace(FULL, seeds=(0,))
    summary = EXPERIMENT.summarize(alone, planted(alone))
    *undecided, baseline = summary.verdicts
    assert {verdict.verdict for verdict in undecided} == {NOT_DECIDED}
    assert all("one model per arm" in verdict.sentence for verdict in undecided)
    assert baseline.verdict == REPRODUCED  # a bound on one recipe against another, not a comparison of losses
    assert summary.verdicts[0].numbers["difference"]["estimate"] == pytest.approx(-0.03)
    short = replace(FULL, steps=120)
    assert set(verdicts(short, planted(short)).values()) == {NOT_DECIDED}


def test_the_full_run_sees_a_quarter_of_a_billion_tokens() -> None:
    spec = EXPERIMENT.profiles["full"]
    assert spec.tokens >= 250_000_000
    assert spec.tokens_per_step == 2**18
    assert spec.checkpoint_every * spec.tokens_per_step < 70_000_000  # what a kill can cost


def test_the_recipe_of_nanogpt_sees_as_many_tokens() -> None:
    spec = EXPERIMENT.profiles["full"]
    recipe, lr = gpt2.arms(spec)[NANOGPT]
    assert recipe["sequences"] * recipe["steps"] == spec.sequences * spec.steps
    assert (recipe["sequences"], lr) == (480, 6e-4)
    assert NANOGPT not in gpt2.arms(replace(spec, nanogpt_sequences=0))
    with pytest.raises(ValueError, match="must divide the 245760 sequences of a run, got 500"):
        gpt2.arms(replace(spec, nanogpt_sequences=500))


def test_tables_and_figures_stand_on_what_is_there() -> None:
    results = planted(FULL)
    ends, way = EXPERIMENT.summarize(FULL, results).tables
    assert [row["arm"] for row in ends.rows] == [STANDARD] * 3 + [HARMONIC] * 3 + [NANOGPT]
    assert [row["step"] for row in way.rows] == list(range(100, 1001, 100))
    assert way.rows[-1]["harmonic minus standard"] == pytest.approx(-0.03, abs=1e-5)
    with house_style():
        left, right = EXPERIMENT.draw(FULL, results)["gpt2_losses"].figure.axes
        assert len(left.lines) == 2 * len([cell for cell in results if cell.arm != NANOGPT])
        assert len(right.lines) == 1 + len(FULL.seeds)
        assert EXPERIMENT.draw(FULL, {}) == {}
        some = dict(list(results.items())[:1])
        assert EXPERIMENT.draw(FULL, some)
    (first, *_) = EXPERIMENT.summarize(FULL, some).tables
    assert sum(row["validation loss"] is not None for row in first.rows) == 1
