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
from harmax.figures import HEAD_STYLES, house_style
from harmax.inspect import load_language_model
from harmax.inspect.embedding import silent
from harmax_lab.experiments import run
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, NOT_RUN, REPRODUCED
from harmax_lab.kit.engine import Event
from harmax_lab.kit.store import CellResult, Run
from harmax_lab.language import gpt2, pretraining, probing
from harmax_lab.language.arms import HARMONIC, PAPERS, STANDARD, STYLES
from harmax_lab.language.gpt2 import CLAIMS, EXPERIMENT, ArmCell, LanguageSpec, fluctuation
from harmax_lab.language.pretraining import TrainingSpec
from harmax_lab.language.words import SAMPLE_PAIRS, WholeWords
from token_shards import write_shards

SMOKE = EXPERIMENT.profiles["smoke"]
FULL = replace(EXPERIMENT.profiles["full"], seeds=(0, 1, 2), exponent=28.0, lr_harmonic=1e-2)


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
    assert {cell.arm for cell in results} == {STANDARD, HARMONIC}
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
    assert len(stopped.failed) == 2
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
    assert len(found.failed) == 2
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
    pairs = [word for pairs in SAMPLE_PAIRS.values() for pair in pairs for word in pair]
    tokens = [encoding.encode(word) for word in pairs]
    assert all(len(one) == 1 for one in tokens)
    assert len({one[0] for one in tokens}) == len(set(pairs))
    others = encoding.encode(" something quite different")
    assert len(others) == 3
    assert all(len(set(pairs)) <= token < 128 for token in others)
    with pytest.raises(ValueError, match="`vocab` must be larger than"):
        WholeWords(20)


def test_a_training_that_diverges_is_a_result_and_is_not_measured(tmp_path: Path) -> None:
    spec = replace(SMOKE, lr_harmonic=1e30)
    broken = replace(EXPERIMENT, profiles={**EXPERIMENT.profiles, "smoke": spec})
    found = run(broken, smoke=True, folder=tmp_path, device="cpu")
    assert not found.failed
    results = EXPERIMENT.by_cell(spec, found.results)
    lost = results[ArmCell(HARMONIC, 0)]
    assert lost.metrics["val_loss"] == np.inf
    assert lost.metrics["diverged_at"] > 0
    assert not lost.arrays
    assert results[ArmCell(STANDARD, 0)].arrays
    assert EXPERIMENT.summarize(spec, results).tables
    with house_style():
        assert EXPERIMENT.draw(spec, results)


RIPPLE = {STANDARD: 0.03, HARMONIC: 0.02}


def planted(
    spec: LanguageSpec,
    change: Callable[[ArmCell], dict[str, float]] = lambda cell: {},
    *,
    lead: float = 0.2,
    ripple: dict[str, float] = RIPPLE,
) -> dict[ArmCell, CellResult]:
    """Return runs in which the harmonic model leads at first by `lead`, and whose losses ripple by some size."""
    results = {}
    for cell in gpt2.cells(spec):
        harmonic = cell.arm == PAPERS
        loss = 3.50 - 0.015 * harmonic + 0.01 * cell.seed
        step = np.arange(1, spec.steps + 1)
        noise = np.random.default_rng(cell.seed).normal(size=len(step))  # both arms read the same batches
        smooth = loss + 4 * np.exp(-step / 120) - lead * harmonic * np.exp(-step / 300)
        curve = (smooth + ripple.get(cell.arm, 0.03) * noise).astype(np.float32)
        places = slice(spec.evaluate_every - 1, None, spec.evaluate_every)
        curves = {"step": step, "loss": curve, "val_step": step[places], "val_loss": smooth[places]}
        gap = 0.10 - 0.02 * harmonic + 0.001 * cell.seed
        metrics = {"val_loss": loss + 0.001 * cell.seed * harmonic, "train_loss": loss - gap, "gap": gap}
        metrics |= {"times_seen": 2.76, "exponent": None, "diverged_at": None}
        cost = {"tokens_per_s": 5e5, "training_seconds": 520.0, "memory_gib": 21.0, "mfu": 0.43}
        results[cell] = CellResult(curves, {}, {**metrics, "cost": cost, **change(cell)})
    return results


def verdicts(spec: LanguageSpec, results: dict[ArmCell, CellResult]) -> dict[str, str]:
    return {verdict.claim: verdict.verdict for verdict in EXPERIMENT.summarize(spec, results).verdicts}


def sentence(claim: str, spec: LanguageSpec, results: dict[ArmCell, CellResult]) -> str:
    return next(one.sentence for one in EXPERIMENT.summarize(spec, results).verdicts if one.claim == claim)


IMPOSSIBLE = {"similar_at_the_end", "final_losses"}


def test_planted_runs_like_the_papers_reproduce_what_can_be_run() -> None:
    found = verdicts(FULL, planted(FULL))
    assert found == {claim.id: NOT_RUN if claim.id in IMPOSSIBLE else REPRODUCED for claim in CLAIMS}


@pytest.mark.parametrize(
    ("claim", "planting"),
    [
        ("faster_at_first", {"lead": -0.2}),
        ("smaller_fluctuations", {"ripple": {STANDARD: 0.02, HARMONIC: 0.03}}),
        ("lower_loss", {"change": lambda cell: {"val_loss": 5.0 + cell.seed} if cell.arm == PAPERS else {}}),
        ("smaller_gap", {"change": lambda cell: {"gap": 5.0 + 0.1 * cell.seed} if cell.arm == PAPERS else {}}),
    ],
)
def test_every_claim_can_break(claim: str, planting: dict[str, Any]) -> None:
    found = verdicts(FULL, planted(FULL, **planting))
    assert [name for name, verdict in found.items() if verdict == NOT_REPRODUCED] == [claim]


def test_what_is_not_run_has_our_smaller_runs_beside_it() -> None:
    for claim in IMPOSSIBLE:
        words = sentence(claim, FULL, planted(FULL))
        assert "4.9 billion tokens of OpenWebText" in words
        assert "In something smaller: Validation loss 3.496 (harmonic) and 3.510 (standard)" in words


def judged(claim: str, results: dict[ArmCell, CellResult]) -> bool | None:
    """Return what the judge of a claim finds, whatever `conclude` makes of it."""
    judge = next(one.judge for one in CLAIMS if one.id == claim)
    assert judge is not None
    return judge(EXPERIMENT.results(FULL, results)).holds


@pytest.mark.parametrize(("apart", "similar"), [(0.005, True), (-0.005, True), (0.3, False), (-0.3, False)])
def test_similar_ends_are_at_most_two_hundredths_apart(apart: float, similar: bool) -> None:
    def ends(cell: ArmCell) -> dict[str, float]:
        return {"val_loss": 3.5 + (apart + 0.001 * cell.seed) * (cell.arm == PAPERS)}

    assert judged("similar_at_the_end", planted(FULL, ends)) is similar


def test_ends_of_which_some_are_near_and_some_far_are_undecided() -> None:
    def ends(cell: ArmCell) -> dict[str, float]:
        return {"val_loss": 3.5 + 0.02 * cell.seed * (cell.arm == PAPERS)}

    assert judged("similar_at_the_end", planted(FULL, ends)) is None


def test_equal_learning_rates_decide_only_what_they_can() -> None:
    equal = replace(FULL, lr_harmonic=FULL.lr_standard)
    leading, behind = verdicts(equal, planted(equal)), verdicts(equal, planted(equal, lead=-0.2))
    # The paper names its larger rate as a part of the reason: a lead without it counts, a lag does not.
    assert (leading["faster_at_first"], behind["faster_at_first"]) == (REPRODUCED, NOT_DECIDED)
    unsteady = planted(equal, ripple={STANDARD: 0.02, HARMONIC: 0.03})
    # A larger rate makes fluctuations larger: those that are larger without it count, smaller ones do not.
    assert leading["smaller_fluctuations"] == NOT_DECIDED
    assert verdicts(equal, unsteady)["smaller_fluctuations"] == NOT_REPRODUCED
    assert "the paper's: 0.006 and 0.0006" in sentence("smaller_fluctuations", equal, unsteady)


def test_another_arm_is_shown_and_changes_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, known = verdicts(FULL, planted(FULL)), gpt2.arms
    monkeypatch.setattr(gpt2, "arms", lambda spec: {**known(spec), "scaled": ({"head": "linear"}, 1e-3)})
    monkeypatch.setitem(STYLES, "scaled", HEAD_STYLES["cross_entropy_bias"])
    more = replace(FULL, arms=(STANDARD, HARMONIC, "scaled"))
    results = planted(more, lambda cell: {"val_loss": 2.0} if cell.arm == "scaled" else {})
    assert verdicts(more, results) == plain
    assert len(EXPERIMENT.summarize(more, results).tables[0].rows) == 9
    with house_style():
        legend = EXPERIMENT.draw(more, results)["gpt2_losses"].figure.legends[0]
    assert "scaled, validation" in [text.get_text() for text in legend.get_texts()]


def test_the_exponent_of_the_authors_code_decides_none_of_the_papers_claims() -> None:
    authors = replace(FULL, exponent=1536.0)
    found = verdicts(authors, planted(authors))
    assert found == {
        claim.id: REPRODUCED if claim.control else NOT_RUN if claim.id in IMPOSSIBLE else NOT_DECIDED
        for claim in CLAIMS
    }
    assert "exponent 1536, the paper's has 28" in sentence("faster_at_first", authors, planted(authors))


def test_one_seed_few_tokens_or_generated_ones_decide_nothing() -> None:
    for spec in (replace(FULL, seeds=(0,)), replace(FULL, steps=120), replace(FULL, embedded=True)):
        assert set(verdicts(spec, planted(spec)).values()) == {NOT_DECIDED, NOT_RUN}
    alone = replace(FULL, seeds=(0,))
    assert "one model per arm" in sentence("lower_loss", alone, planted(alone))
    assert (
        verdicts(FULL, planted(FULL, lambda cell: {"val_loss": 3.5 + 0.01 * cell.seed * (cell.arm == PAPERS)}))[
            "lower_loss"
        ]
        == NOT_DECIDED
    )  # seeds that differ as much as the arms


LOST = {"val_loss": np.inf, "gap": np.nan, "diverged_at": 40}


def test_a_diverged_harmonic_model_fails_and_a_diverged_standard_one_decides_nothing() -> None:
    for arm, verdict in ((PAPERS, NOT_REPRODUCED), (STANDARD, NOT_DECIDED)):
        found = verdicts(FULL, planted(FULL, lambda cell, arm=arm: LOST if cell == ArmCell(arm, 1) else {}))
        assert {found[claim.id] for claim in CLAIMS if claim.id not in IMPOSSIBLE} == {verdict}


def test_fluctuations_are_those_around_the_trend() -> None:
    step = np.arange(1, 1001)
    trend = 3 + 5 * np.exp(-step / 300)
    noise = np.random.default_rng(0).normal(size=1000)
    quiet, loud = (fluctuation(step, trend + size * noise, after=500) for size in (0.01, 0.02))
    assert quiet == pytest.approx(0.01, rel=0.1)
    assert loud == pytest.approx(2 * quiet, rel=0.01)
    assert fluctuation(step, trend, after=500) < 1e-3
    spike = trend + 0.01 * noise
    spike[800] += 1.0
    assert fluctuation(step, spike, after=500) > 3 * quiet
    assert fluctuation(step, spike, after=900) < 1.2 * quiet  # over by then
    assert fluctuation(step[:10], trend[:10], after=5) is None


def test_the_full_run_sees_a_quarter_of_a_billion_tokens() -> None:
    spec = EXPERIMENT.profiles["full"]
    assert spec.tokens >= spec.FULL_TOKENS == 250_000_000
    assert spec.tokens_per_step == 2**18
    assert spec.checkpoint_every * spec.tokens_per_step < 70_000_000  # what a kill can cost
    assert round(0.1 * spec.steps) % spec.evaluate_every == 0  # where "at first" is read


def test_fewer_tasks_or_quadruples_than_the_papers_decide_nothing() -> None:
    few = replace(FULL, tasks=("capitalize",))
    for spec in (few, replace(FULL, quadruples=100)):
        assert set(verdicts(spec, planted(spec)).values()) == {NOT_DECIDED, NOT_RUN}
    assert "tasks left out: antonym, country-capital" in sentence("lower_loss", few, planted(few))


def test_tables_and_figures_stand_on_what_is_there() -> None:
    results = planted(FULL)
    ends, way = EXPERIMENT.summarize(FULL, results).tables
    assert [row["arm"] for row in ends.rows] == [STANDARD] * 3 + [HARMONIC] * 3
    assert [row["step"] for row in way.rows] == list(range(96, 961, 96))
    assert way.rows[0]["harmonic minus standard"] == pytest.approx(-0.015 - 0.2 * np.exp(-96 / 300), abs=1e-5)
    with house_style():
        drawn = EXPERIMENT.draw(FULL, results)["gpt2_losses"]
        left, right = drawn.figure.axes
        assert len(left.lines) == 2 * len(results) + 1
        assert len(right.lines) == 2 + len(FULL.seeds)
        assert "252M tokens of the corpus, 3 models per arm; exponent 28." in drawn.caption
        assert EXPERIMENT.draw(FULL, {}) == {}
        some = dict(list(results.items())[:1])
        assert EXPERIMENT.draw(FULL, some)
    (first, *_) = EXPERIMENT.summarize(FULL, some).tables
    assert sum(row["validation loss"] is not None for row in first.rows) == 1
