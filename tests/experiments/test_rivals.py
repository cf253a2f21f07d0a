"""The rivals: planted scores give planted verdicts, and the search chooses what it says and is found again."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harmax.data import find_task
from harmax.experiments.algorithmic import anchors
from harmax.experiments.algorithmic.protocols import settings
from harmax.experiments.rivals import search as search_module
from harmax.experiments.rivals.arms import APPENDIX, ARMS, LOSSES, VARIANTS, RivalCell, find_arm, piece_of, settings_of
from harmax.experiments.rivals.comparisons import compare_all
from harmax.experiments.rivals.outcomes import Place, collect
from harmax.experiments.rivals.rivals import EXPERIMENT, FULL, RivalsSpec, cells, run_cells, summarize
from harmax.experiments.rivals.rivals_claims import CLAIMS
from harmax.experiments.rivals.search import Searched, at_edge, choose, search, trial_settings, trials
from harmax.experiments.spec import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED, Context
from harmax.losses import LOSSES as KNOWN
from harmax.report.figures import house_style
from harmax.store import CellResult
from planted_studies import planted

SPEC = replace(FULL, seeds=tuple(range(10)), tasks=("modular_addition", "permutation"))
TINY = RivalsSpec(
    seeds=(0,),
    protocols=("matched",),
    models=("mlp",),
    losses=("harmonic", "arcface"),
    tasks=("modular_addition",),
    mlp_epochs=1,
    learning_rates=(2e-3, 8e-3),
    weight_decays=(0.01,),
    search_seeds=(2001,),
    search_tasks=("modular_addition",),
    search_mlp_epochs=1,
)
Score = Callable[[str], float]


def results(score: Score, *, choice: tuple[int, int] = (1, 1), spec: RivalsSpec = SPEC) -> dict[RivalCell, CellResult]:
    found = planted(cells(spec), lambda cell: score(cell.loss))
    shape = (4, 3, len(spec.search_tasks), 5)
    searched = {"search_late": np.full(shape, 0.5), "search_whole": np.full(shape, 0.4)}
    return {
        cell: replace(one, arrays={**one.arrays, **searched}, metrics={**one.metrics, "choice": list(choice)})
        if cell.protocol == "matched"
        else one
        for cell, one in found.items()
    }


def verdicts(score: Score, *, spec: RivalsSpec = SPEC, **options: Any) -> dict[str, str]:
    found = {one.claim: one.verdict for one in summarize(spec, results(score, spec=spec, **options)).verdicts}
    assert list(found) == [claim.id for claim in CLAIMS]
    return found


def leading(loss: str) -> float:
    return 0.9 if loss.startswith("harmonic") else 0.6


def test_where_harmonic_leads_every_claim_holds() -> None:
    assert set(verdicts(leading).values()) == {REPRODUCED}


def test_one_better_rival_breaks_what_is_claimed_of_all() -> None:
    found = verdicts(lambda loss: 1.0 if loss == "arcface" else leading(loss))
    broken = {claim for claim, verdict in found.items() if verdict == NOT_REPRODUCED}
    names = ("untuned_structure_first", "structure_first", "accuracy_unbeaten")
    assert broken == {f"{name}_{model}" for name in names for model in ("mlp", "transformer")}


def test_where_everything_differs_the_other_way_every_claim_is_broken() -> None:
    scores = {"harmonic": 0.3, "harmonic_untied": 0.6, "linear": 0.7, "linear_bias": 0.5}
    assert set(verdicts(lambda loss: scores.get(loss, 0.6), choice=(3, 1)).values()) == {NOT_REPRODUCED}


def test_what_ties_is_not_first_and_what_was_not_run_decides_nothing() -> None:
    found = verdicts(lambda loss: 0.9 if loss in ("harmonic", "l2") else 0.6)
    assert found["structure_first_mlp"] == NOT_DECIDED
    few = {"models": ("mlp",), "protocols": ("matched",), "losses": ("harmonic", "linear")}
    for change in ({"seeds": (0, 1)}, few, {**few, "mlp_epochs": 10}):
        shorter = verdicts(leading, spec=replace(SPEC, **change))
        assert shorter["structure_first_mlp"] == shorter["accuracy_unbeaten_mlp"] == NOT_DECIDED


def test_the_verdict_table_counts_pairs_of_task_and_model() -> None:
    # With fewer seeds no p-value survives the correction for all comparisons.
    spec = replace(SPEC, seeds=tuple(range(14)), protocols=("matched",), losses=("harmonic", "l2", "linear", "arcface"))
    scores = {"harmonic": 0.7, "l2": 0.7, "linear": 0.5, "arcface": 0.8}
    rows = summarize(spec, results(scores.__getitem__, spec=spec)).tables[0].rows
    by_loss = {row["loss"]: row for row in rows if row["measure"] == "test accuracy"}
    counts = {loss: (row["better"], row["worse"], row["undecided"], row["of"]) for loss, row in by_loss.items()}
    assert counts["cross-entropy"] == (0, 4, 0, 4)
    assert counts["ArcFace"] == (4, 0, 0, 4)
    assert counts["distance, softmax"] == (0, 0, 4, 4)


def test_p_values_are_corrected_for_all_comparisons_and_fewer_epochs_are_better() -> None:
    own = [
        RivalCell("matched", "lattice", "mlp", "linear", 0.8, seed, loss)
        for loss in ("harmonic", "linear", "l2")
        for seed in range(12)
    ]
    scores = {"harmonic": 0.7, "linear": 0.9, "l2": 0.6}
    outcomes = collect(planted(own, lambda cell: scores[cell.loss]), lambda cell: cell.loss)
    place = Place("matched", "mlp", ("lattice",))
    found = {one.loss: one for one in compare_all(outcomes, [place], list(scores), "harmonic", "epochs")}
    assert (found["linear"].outcome, found["l2"].outcome) == ("better", "worse")
    assert found["linear"].p == pytest.approx(2 * 2 / 2**12)


def test_every_loss_is_a_loss_and_is_built_for_both_models_as_it_must_be() -> None:
    assert {arm.head for arm in ARMS.values()} <= set(KNOWN)
    assert len(LOSSES) == 16
    task = find_task("lattice", protocol="authors")
    for name, arm in ARMS.items():
        for model in ("mlp", "transformer"):
            for protocol in ("authors", "matched") if name not in VARIANTS else ("matched",):
                how = settings_of(protocol, model, name, epochs=1)
                built = how.build(task, model, arm.head)
                assert isinstance(built.head, KNOWN[arm.head])
                assert (built.head.weight is built.embedding) == how.tied
                assert protocol == "authors" or (how.tied, how.bias) == (arm.tied, arm.bias)


def test_the_papers_two_arms_are_the_authors_under_their_protocol() -> None:
    for model in ("mlp", "transformer"):
        for head in ("linear", "harmonic"):
            assert settings_of("authors", model, head, epochs=9) == settings("authors", model, head, epochs=9)


def test_unknown_losses_name_the_nearest() -> None:
    with pytest.raises(ValueError, match="'arcface'"):
        find_arm("arkface")


def test_held_out_seeds_are_held_out() -> None:
    assert not set(FULL.search_seeds) & set(anchors.SEEDS)
    with pytest.raises(ValueError, match="must be held out"):
        replace(FULL, seeds=(1, 2003))


def test_every_loss_has_the_same_search() -> None:
    pairs = [("linear", "mlp"), ("arcface", "mlp"), ("supcon", "transformer")]
    assert len(trials(FULL, pairs)) == 3 * 12 * 5 * 3
    grids = []
    for pair in pairs:
        how = [trial_settings(FULL, trial) for trial in trials(FULL, [pair])]
        grids.append({(one.learning_rate, one.weight_decay) for one in how})
        assert {one.epochs for one in how} == {FULL.search_epochs(pair[1])}
    assert grids[0] == grids[1] == grids[2]
    assert len(grids[0]) == 12


def test_the_best_is_chosen_and_among_equals_the_soonest() -> None:
    late, whole = np.zeros((4, 3)), np.zeros((4, 3))
    late[2, 1], whole[2, 1] = 0.8, 0.1
    assert choose(late, whole) == (2, 1)
    late[0, 2], whole[0, 2] = 0.795, 0.5
    assert choose(late, whole) == (0, 2)
    late[0, 2] = 0.78
    assert choose(late, whole) == (2, 1)
    shaped = Searched(*(np.repeat(array[..., None, None], 2, axis=3) for array in (late, whole)))
    assert shaped.choice == (2, 1)


@pytest.mark.parametrize(
    ("choice", "edge"), [((1, 1), False), ((1, 0), False), ((0, 1), True), ((3, 1), True), ((2, 2), True)]
)
def test_no_weight_decay_is_no_edge(choice: tuple[int, int], edge: bool) -> None:
    assert at_edge(FULL, choice) == edge


def test_final_runs_are_trained_with_what_the_search_chose(tmp_path: Path) -> None:
    found = dict(run_cells(TINY, cells(TINY), Context(tmp_path)))
    assert set(found) == set(cells(TINY))
    for cell, one in found.items():
        rate, decay = one.metrics["choice"]
        assert one.metrics["learning_rate"] == TINY.learning_rates[rate]
        assert one.metrics["weight_decay"] == TINY.weight_decays[decay] == 0.01
        assert one.arrays["search_late"].shape == (2, 1, 1, 1)
        assert cell.seed not in TINY.search_seeds


def test_an_interrupted_piece_does_not_search_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [("harmonic", "mlp"), ("arcface", "mlp")]
    first = search(TINY, pairs, Context(tmp_path))

    def refuse(wanted: Any, *rest: Any, **options: Any) -> Iterator[Any]:
        assert not wanted
        return iter(())

    monkeypatch.setattr(search_module, "train", refuse)
    again = search(TINY, pairs, Context(tmp_path))
    for pair in pairs:
        np.testing.assert_array_equal(again[pair].late, first[pair].late)


def test_a_damaged_note_of_the_search_costs_a_search(tmp_path: Path) -> None:
    first = search(TINY, [("linear", "mlp")], Context(tmp_path))
    (tmp_path / "search.json").write_text("{")
    again = search(TINY, [("linear", "mlp")], Context(tmp_path))
    np.testing.assert_array_equal(again["linear", "mlp"].late, first["linear", "mlp"].late)


def test_pieces_of_tuned_work_hold_four_losses_with_both_models() -> None:
    groups = EXPERIMENT.groups(cells(FULL))
    untuned, tuned = groups[:2], groups[2:]
    assert [{cell.loss for cell in group} for group in untuned] == [set(APPENDIX)] * 2
    assert [len({cell.loss for cell in group}) for group in tuned] == [4] * 5
    assert all({cell.model for cell in group} == {"mlp", "transformer"} for group in tuned)
    assert piece_of("harmonic") == piece_of("linear") == 0


def test_figures_show_every_rival_and_the_search() -> None:
    with house_style():
        pictures = EXPERIMENT.figures(SPEC, results(leading))
        axes = pictures["effects_structure_matched"].figure.axes[0]
        labels = [label.get_text() for label in axes.get_yticklabels()]
        assert labels == [arm.label for name, arm in ARMS.items() if name != "harmonic"]
        assert len([axes for axes in pictures["search_mlp"].figure.axes if axes.get_visible()]) == len(ARMS)
