"""The rivals: planted scores give planted verdicts, tables and figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harmax.analysis import bootstrap_interval, holm, paired_difference
from harmax.figures import house_style
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED, Finding, Verdict, conclude
from harmax_lab.kit.judges import SIGNIFICANT, shared_level
from harmax_lab.kit.store import CellResult
from harmax_lab.kit.tables import Table
from harmax_lab.studies.compare_arms import MARGIN, Place, none_ahead
from harmax_lab.studies.rivals import (
    CORNERS,
    FULL,
    MLP,
    SQUARE,
    SQUARE_TITLE,
    TIED_RIVALS,
    TRANSFORMER,
    UNTIED,
    RivalsSpec,
    cells,
    claims_of,
    comparisons,
)
from harmax_lab.studies.score_runs import DIRECTIONS, SCORES
from harmax_lab.studies.tables_and_figures import ELSEWHERE, PASSING, WITHOUT, WITHOUT_ONE, effect_table, run_tables
from harmax_lab.studies.tuned_losses import ARMS, LOSSES, RivalCell, reads_out, reference_of, settings_of
from harmax_lab.tasks import find_task
from planted_studies import planted

TWO_TASKS = replace(FULL, tasks=("modular_addition", "permutation"))  # stand for all: five only take longer
SPEC = replace(TWO_TASKS, seeds=tuple(range(10)))
STUDIES = {"mlp": MLP, "transformer": TRANSFORMER}
MODELS = ("mlp", "transformer")
Score = Callable[[str], float]


def results(
    score: Score, *, at_end: Mapping[str, tuple[int, int]] | None = None, spec: RivalsSpec = SPEC
) -> dict[RivalCell, CellResult]:
    found = planted(cells(spec), lambda cell: score(cell.loss))
    grid = len(spec.learning_rates), len(spec.weight_decays), len(spec.search_tasks), len(spec.search_seeds)
    searched = {"search_late": np.full(grid, 0.5), "search_whole": np.full(grid, 0.4)}

    def tuned(cell: RivalCell, one: CellResult) -> CellResult:
        rate, decay = (at_end or {}).get(cell.loss, (1, 1))
        chosen = {"learning_rate": spec.learning_rates[rate], "weight_decay": spec.weight_decays[decay]}
        return replace(one, arrays={**one.arrays, **searched}, metrics={**one.metrics, **chosen})

    return {cell: tuned(cell, one) if cell.protocol == "matched" else one for cell, one in found.items()}


def judged(found: dict[RivalCell, CellResult], spec: RivalsSpec = SPEC) -> dict[str, Verdict]:
    """Judge every claim; two tasks are enough."""
    judged = []
    for model in spec.models:
        # Through the experiment, so that these verdicts count as planted ones (verdicts_seen.py).
        study = replace(STUDIES[model], claims=tuple(claims_of(model, TWO_TASKS)), tables=lambda results: ())
        judged += study.judge(study.results(spec, found)).verdicts
    return {one.claim: one for one in judged}


def verdicts(score: Score, *, spec: RivalsSpec = SPEC, **options: Any) -> dict[str, str]:
    return {claim: one.verdict for claim, one in judged(results(score, spec=spec, **options), spec).items()}


def broken(found: dict[str, str]) -> set[str]:
    return {claim for claim, verdict in found.items() if verdict == NOT_REPRODUCED}


def of_both(*names: str) -> set[str]:
    return {f"{name}_{model}" for name in names for model in MODELS}


def table(found: tuple[Table, ...], title: str) -> Table:
    (one,) = (table for table in found if table.title.startswith(title))
    return one


def leading(loss: str) -> float:
    scores = {"l2": 0.65, "spherical": 0.65, "harmonic_root": 0.95}
    return scores.get(loss, 0.9 if loss.startswith("harmonic") else 0.6)


def test_where_harmonic_leads_every_claim_holds() -> None:
    assert set(verdicts(leading).values()) == {REPRODUCED}


def test_a_summary_judges_every_claim_and_two_of_five_tasks_decide_only_the_rest() -> None:
    for model, study in (("mlp", MLP), ("transformer", TRANSFORMER)):
        found = {one.claim: one.verdict for one in study.summarize(SPEC, results(leading)).verdicts}
        assert list(found) == [claim.id for claim in claims_of(model)]
        decided = {claim for claim, verdict in found.items() if verdict != NOT_DECIDED}
        assert decided == {f"untuned_structure_first_{model}", f"choices_inside_{model}"}


def test_one_better_rival_breaks_what_is_claimed_of_all() -> None:
    found = verdicts(lambda loss: 1.1 if loss == "arcface" else leading(loss))
    tuned = ("structure_first", "accuracy_unbeaten", "root_first", "root_unbeaten")
    assert broken(found) == of_both("untuned_structure_first", *tuned)


def test_where_everything_differs_the_other_way_every_claim_is_broken() -> None:
    scores = {"harmonic": 0.2, "harmonic_untied": 0.6, "linear": 0.7, "linear_untied": 0.8, "linear_bias": 0.5}
    scores["harmonic_root"] = 0.1
    found = verdicts(
        lambda loss: scores.get(loss, 0.6), at_end={"linear_untied_bias": (4, 1)}
    )  # which no other claim needs
    assert set(found.values()) == {NOT_REPRODUCED}


def verdict_of(claim: str, found: dict[RivalCell, CellResult]) -> tuple[str, str]:
    (asked,) = (one for model in MODELS for one in claims_of(model, TWO_TASKS) if one.id == claim)
    one = conclude(asked, MLP.results(SPEC, found))
    return one.verdict, one.sentence


def arms_of(claim: str) -> set[str]:
    """Return the arms that a claim needs."""
    (asked,) = (one for one in claims_of("mlp") if one.id == claim)
    return {cell.loss for cell in cells(SPEC) if asked.needs(cell)}


@pytest.mark.parametrize("loss", ["harmonic_untied", "arcface"])
@pytest.mark.parametrize("end", [(4, 1), (1, 3)])
def test_what_holds_rests_on_every_arm_and_none_may_be_tuned_to_an_end(loss: str, end: tuple[int, int]) -> None:
    found = results(leading, at_end={loss: end})
    verdict, sentence = verdict_of("structure_first_mlp", found)
    assert verdict == NOT_DECIDED
    assert f"beyond those that were tried: {ARMS[loss].label}, " in sentence
    assert verdict_of("structure_over_linear_mlp", found)[0] == REPRODUCED


def test_a_claim_about_all_is_broken_by_one_pair_that_was_tuned_inside_the_grid() -> None:
    def score(loss: str) -> float:
        return 1.1 if loss in ("arcface", "supcon") else leading(loss)

    for at_end, expected in (
        (["harmonic_untied"], NOT_REPRODUCED),  # ArcFace is held against the tied one
        (["harmonic"], NOT_REPRODUCED),  # the contrastive loss against the untied
        (["harmonic", "supcon"], NOT_DECIDED),
        (["cosface"], NOT_REPRODUCED),
    ):
        found = results(score, at_end=dict.fromkeys(at_end, (0, 1)))
        assert verdict_of("structure_first_mlp", found)[0] == expected


@pytest.mark.parametrize("name", ["tuned_distance", "tuned_interaction", "bias_is_nothing"])
def test_every_arm_of_a_difference_must_be_tuned_inside_the_grid(name: str) -> None:
    for loss in arms_of(f"{name}_mlp"):
        assert verdict_of(f"{name}_mlp", results(leading, at_end={loss: (4, 1)}))[0] == NOT_DECIDED
    assert verdict_of(f"{name}_mlp", results(leading, at_end={"arcface": (4, 1)}))[0] == REPRODUCED


def test_untied_rivals_are_not_held_against_the_papers_rule() -> None:
    found = verdicts(lambda loss: 1.1 if reads_out(loss) else leading(loss))
    assert broken(found) >= of_both("structure_first", "accuracy_unbeaten")
    assert {found[claim] for claim in of_both("root_first", "root_unbeaten")} == {REPRODUCED}


def test_the_lead_is_tabulated_without_each_task() -> None:
    spec = replace(SPEC, tasks=("lattice", "modular_addition", "permutation"), models=("mlp",), protocols=("matched",))
    found = planted(cells(spec), lambda cell: leading(cell.loss) if cell.task == "lattice" else 0.5, spread=0.0)
    made = {row["of"]: row for row in tables_of(spec, found, WITHOUT)}
    row = made["cross-entropy minus harmonic"]
    assert row["all tasks"] == "-0.100 [-0.100, -0.100]"
    assert row["without Lattice"] == "+0.000 [+0.000, +0.000]"
    assert "supervised contrastive minus harmonic, untied" in made
    assert made["cross-entropy minus harmonic, exponent 4"]["without Lattice"] == "+0.000 [+0.000, +0.000]"
    assert "supervised contrastive minus harmonic, exponent 4" not in made
    assert len(made) == len(ARMS) - 1 + len(TIED_RIVALS)
    accurate = {row["of"]: row for row in tables_of(spec, found, f"Late test accuracy {WITHOUT_ONE}")}
    assert accurate == made  # planted scores are alike


def test_the_search_is_tabulated_by_task_too() -> None:
    spec = replace(SPEC, models=("mlp",), protocols=("matched",), losses=("harmonic", "linear"))
    late_LWTR = np.zeros((5, 4, 3, 5))
    late_LWTR[1, 2] = 0.25  # what is chosen
    late_LWTR[3, 0, 1] = np.linspace(0.3, 0.7, 5)  # better on the second task alone
    found = {
        cell: replace(one, arrays={**one.arrays, "search_late": late_LWTR})
        for cell, one in results(leading, at_end=dict.fromkeys(spec.losses, (1, 2)), spec=spec).items()
    }
    harmonic, linear = tables_of(spec, found, "The search by task")
    assert (
        {**linear, "loss": "harmonic"}
        == harmonic
        == {
            "loss": "harmonic",
            "models": "MLPs",
            "Modular addition, chosen": 0.25,
            "Modular addition, best": 0.25,
            "Genealogy, chosen": 0.25,
            "Genealogy, best": 0.5,
            "Permutation composition, chosen": 0.25,
            "Permutation composition, best": 0.25,
        }
    )


def tables_of(spec: RivalsSpec, found: dict[RivalCell, CellResult], title: str) -> Sequence[Mapping[str, Any]]:
    return table(MLP.summarize(spec, found).tables, title).rows


def test_each_model_is_a_study_of_its_own_with_the_same_questions() -> None:
    for model, study in (("mlp", MLP), ("transformer", TRANSFORMER)):
        own = study.work.cells(study.profiles["full"])
        assert {cell.model for cell in own} == {model}
        assert set(own) == {cell for cell in cells(FULL) if cell.model == model}
    assert [claim.id.rsplit("_", 1)[0] for claim in MLP.claims] == [
        claim.id.rsplit("_", 1)[0] for claim in TRANSFORMER.claims
    ]


def test_losses_that_read_classes_out_are_held_against_untied_harmonic() -> None:
    readers = [loss for loss in LOSSES if reads_out(loss)]
    assert arms_of("structure_first_mlp") == {*LOSSES, "harmonic_untied"}
    assert {reference_of(loss, base, "matched") for loss in readers for base in ("harmonic", "linear")} == {
        "harmonic_untied",
        "linear_untied",
    }
    assert {reference_of(loss, "harmonic", "matched") for loss in LOSSES if loss not in readers} == {"harmonic"}
    assert reference_of("linear_untied_bias", "harmonic", "matched") == "harmonic_untied"
    # Behind tied harmonic and ahead of untied: which of them counts decides.
    scores = {"harmonic": 0.9, "harmonic_untied": 0.65, **dict.fromkeys(readers, 0.75)}
    found = verdicts(lambda loss: scores.get(loss, 0.5))
    assert of_both("structure_first", "accuracy_unbeaten") <= broken(found)
    assert found["untuned_structure_first_mlp"] == REPRODUCED
    scores["harmonic_untied"] = 0.85
    found = verdicts(lambda loss: scores.get(loss, 0.5))
    assert {found[claim] for claim in of_both("structure_first", "accuracy_unbeaten")} == {REPRODUCED}


def test_what_ties_is_not_first_and_what_was_not_run_decides_nothing() -> None:
    found = verdicts(lambda loss: 0.9 if loss in ("harmonic", "l2") else 0.6)
    assert found["structure_first_mlp"] == NOT_DECIDED
    few = {"models": ("mlp",), "protocols": ("matched",), "losses": ("harmonic", "linear")}
    without = {**few, "losses": tuple(loss for loss in ARMS if loss != "harmonic_untied")}
    all_losses = {**few, "losses": tuple(ARMS)}
    short = ({**all_losses, "seeds": (0, 1)}, {**all_losses, "tasks": ("permutation",)}, few, without)
    for change in (*short, {**all_losses, "mlp_epochs": 10}):
        shorter = verdicts(leading, spec=replace(SPEC, **change))
        assert shorter["structure_first_mlp"] == shorter["accuracy_unbeaten_mlp"] == NOT_DECIDED


@pytest.mark.parametrize(
    "change",
    [
        {"search_mlp_epochs": 10},
        {"search_seeds": (2001,)},
        {"search_tasks": ("permutation",)},
        {"learning_rates": FULL.learning_rates[:4]},
    ],
)
def test_a_search_that_was_cut_down_decides_nothing_that_is_tuned(change: dict[str, Any]) -> None:
    found = verdicts(leading, spec=replace(SPEC, models=("mlp",), **change))
    decided = [claim for claim, verdict in found.items() if verdict != NOT_DECIDED]
    assert decided == ["untuned_structure_first_mlp"]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ({"linear": 0.3, "l2": 0.8, "spherical": 0.3, "harmonic": 0.9}, (REPRODUCED, REPRODUCED, REPRODUCED)),
        ({"linear": 0.9, "l2": 0.5, "spherical": 0.5, "harmonic": 0.3}, (NOT_REPRODUCED, NOT_REPRODUCED, REPRODUCED)),
        ({"linear": 0.3, "l2": 0.8, "spherical": 0.8, "harmonic": 0.9}, (REPRODUCED, REPRODUCED, NOT_REPRODUCED)),
        (dict.fromkeys(CORNERS, 0.5), (NOT_DECIDED, NOT_DECIDED, NOT_DECIDED)),
    ],
)
def test_the_tuned_square_finds_planted_effects(scores: dict[str, float], expected: tuple[str, ...]) -> None:
    spec = replace(SPEC, protocols=("matched",), models=("mlp",), losses=CORNERS)
    names = ("tuned_distance_mlp", "tuned_harmax_mlp", "tuned_interaction_mlp")
    found = verdicts(scores.__getitem__, spec=spec)
    assert tuple(found[name] for name in names) == expected
    assert {verdicts(scores.__getitem__, spec=replace(spec, seeds=(0, 1)))[name] for name in names} == {NOT_DECIDED}


def test_the_tables_of_effects_are_the_planted_ones_and_corrected_for_all_of_a_score() -> None:
    spec = replace(SPEC, protocols=("matched",), losses=CORNERS)
    scores = {"linear": 0.3, "l2": 0.8, "spherical": 0.4, "harmonic": 0.9}
    found = planted(cells(spec), lambda cell: scores[cell.loss], spread=0.0)
    alone = [place._replace(tasks=(task,)) for place in spec.places(found) for task in place.tasks[:1]]
    rows = effect_table("", alone, SQUARE).rows
    assert [row["distance"] for row in rows] == ["+0.500 [+0.500, +0.500]"] * 6
    assert [row["interaction"] for row in rows] == ["+0.000 [+0.000, +0.000]"] * 6
    # Ten seeds of one sign, and six tests a score: two models and three effects, of which two are nothing.
    assert rows[0]["p, Holm, distance"] == pytest.approx(6 * 2 / 2**10)
    assert rows[0]["p, Holm, interaction"] == 1
    shown = table(MLP.summarize(spec, results(scores.__getitem__, spec=spec)).tables, SQUARE_TITLE)
    assert {row["task"] for row in shown.rows} == {"Modular addition", "Permutation composition", "mean of 2"}
    without = replace(spec, losses=("harmonic", "linear", "l2"))
    titles = [one.title for one in MLP.summarize(without, results(scores.__getitem__, spec=without)).tables]
    assert not any(title.startswith(SQUARE_TITLE) for title in titles)


def of_differences(differences: dict[str, list[float]]) -> Place:
    """Plant what arms are more than "ours", seed by seed."""
    own = {
        RivalCell("matched", "lattice", "mlp", "linear", 0.8, seed, loss): value
        for loss, values in {**differences, "ours": [0.0] * 10}.items()
        for seed, value in enumerate(values)
    }
    return place_of(planted(own, own.__getitem__, spread=0.0))


def place_of(found: dict[RivalCell, CellResult]) -> Place:
    """Return the MLPs' place under the matched protocol, with the tasks of the runs found."""
    (place,) = (one for one in FULL.places(found) if one.runs)
    return place._replace(tasks=tuple(dict.fromkeys(task for task, _ in place.runs)))


def none_above(place: Place, pairs: dict[str, str], *, score: str = "structure", limit: float = 0.0) -> Finding:
    names = {name: name for name in (*pairs, *pairs.values())}
    return none_ahead(pairs, names, score, limit=limit).judge(place)


def test_an_interval_at_a_shared_level_alone_breaks_nothing() -> None:
    quiet = {f"other{place}": [0.1 * (-1) ** seed for seed in range(10)] for place in range(7)}
    nearly = [-0.01] + [0.2 + 0.01 * seed for seed in range(9)]  # one small difference the other way
    pairs = dict.fromkeys(["one", *quiet], "ours")
    shared = paired_difference(nearly, [0.0] * 10, statistic="mean", level=shared_level(len(pairs)))
    assert shared.difference.low > 0
    assert len(pairs) * shared.rank_p < SIGNIFICANT
    assert none_above(of_differences({"one": nearly, **quiet}), pairs).holds is False
    # Two the other way: the interval still keeps clear, the corrected test does not.
    less = [-0.01, -0.02, *nearly[2:]]
    shared = paired_difference(less, [0.0] * 10, statistic="mean", level=shared_level(len(pairs)))
    assert shared.difference.low > 0
    assert len(pairs) * shared.rank_p > SIGNIFICANT
    answer = none_above(of_differences({"one": less, **quiet}), pairs)
    assert answer.holds is None
    assert f"Corrected for 8: [{shared.difference.low:+.3f}, " in answer.sentence
    assert f"p against 0 {len(pairs) * shared.rank_p:.2g}" in answer.sentence


def test_doubt_is_told_in_the_limits_units_and_only_where_there_is_some() -> None:
    more = [MARGIN + 0.03 + 0.001 * seed for seed in range(6)] + [MARGIN - 0.001 * seed for seed in range(1, 5)]
    place = of_differences({"one": more, "two": [-0.2] * 10})
    answer = none_above(place, {"one": "ours", "two": "ours"}, score="accuracy", limit=MARGIN)
    assert answer.numbers["difference_one"]["low"] > MARGIN
    assert answer.holds is None
    strict, other = (
        paired_difference(values, [MARGIN] * 10, statistic="mean", level=shared_level(2))
        for values in (more, [-0.2] * 10)
    )
    p = holm([strict.rank_p, other.rank_p])[0]
    assert p > SIGNIFICANT
    assert f"Corrected for 2: [{MARGIN + strict.difference.low:+.3f}, " in answer.sentence
    assert f"p against {MARGIN:g} {p:.2g}: not decided." in answer.sentence
    assert "Corrected" not in none_above(place, {"two": "ours"}, score="accuracy", limit=MARGIN).sentence


def test_runs_that_fail_the_test_are_told_apart_from_those_that_pass() -> None:
    own = [RivalCell("matched", "permutation", "mlp", "linear", 0.8, seed, "linear") for seed in range(4)]
    found = planted(own, lambda cell: 0.95 if cell.seed else 0.3, spread=0.0)
    found = {cell: replace(one, metrics={**one.metrics, "structure": cell.seed / 10}) for cell, one in found.items()}
    _, told, elsewhere = run_tables([place_of(found)], {"linear": "cross-entropy", "l2": "distance"})
    (row,) = told.rows
    assert told.title == PASSING
    assert not elsewhere.rows
    assert (row["arm"], row["runs"], row["pass"]) == ("cross-entropy", 4, 3)
    assert row["structure where they pass"] == pytest.approx(0.2)
    assert row["where they fail"] == 0.0


def test_beyond_a_margin_both_interval_and_test_look_from_the_margin() -> None:
    barely = [MARGIN + 0.01 * (-1) ** seed for seed in range(10)]
    place = of_differences({"one": barely, "two": [-0.2] * 10, "three": [-0.2] * 10})
    pairs = {"one": "ours", "two": "ours"}
    assert none_above(place, pairs, score="accuracy").holds is False
    assert none_above(place, pairs, score="accuracy", limit=MARGIN).holds is None
    assert none_above(place, pairs, score="accuracy", limit=0.1).holds is True
    assert none_above(place, {**pairs, "three": "nobody"}, score="accuracy", limit=0.1).holds is None


def test_a_bootstrap_of_20_is_a_little_short_and_more_so_at_a_shared_level() -> None:
    # What the page says of intervals: normal values without an effect.
    generator = np.random.default_rng(0)
    values = generator.normal(size=(1000, 20))
    missed = {}
    for level in (0.95, shared_level(len(LOSSES) - 1)):
        found = [bootstrap_interval(own, statistic="mean", level=level).above(0) for own in values]
        missed[level] = float(np.mean([answer is not None for answer in found]))
    plain, shared = missed.values()
    assert 0.05 < plain < 0.09
    assert shared > 1.5 * (0.05 / (len(LOSSES) - 1))


def test_the_verdict_table_counts_pairs_of_task_and_model() -> None:
    # With fewer seeds no p-value survives the correction for all comparisons.
    few = ("harmonic", "l2", "linear", "arcface", "supcon", "harmonic_untied")
    spec = replace(SPEC, seeds=tuple(range(14)), protocols=("matched",), losses=few)
    scores = {"harmonic": 0.7, "l2": 0.7, "linear": 0.5, "arcface": 0.8, "supcon": 0.6, "harmonic_untied": 0.5}
    rows = MLP.summarize(spec, results(scores.__getitem__, spec=spec)).tables[0].rows
    by_loss = {row["loss"]: row for row in rows if row["measure"] == SCORES["accuracy"]}
    counts = {loss: (row["better"], row["worse"], row["undecided"], row["of"]) for loss, row in by_loss.items()}
    assert counts["cross-entropy"] == (0, 4, 0, 4)
    assert counts["ArcFace"] == (4, 0, 0, 4)
    assert counts["distance, softmax"] == (0, 0, 4, 4)
    assert counts["supervised contrastive"] == (4, 0, 0, 4)
    assert counts["harmonic, untied"] == (0, 4, 0, 4)
    against = {loss: row["against"] for loss, row in by_loss.items()}
    assert against["supervised contrastive"] == "harmonic, untied"
    assert against["harmonic, untied"] == against["ArcFace"] == "harmonic"


def test_p_values_are_corrected_for_all_comparisons_and_fewer_epochs_are_better() -> None:
    own = [
        RivalCell("matched", "lattice", "mlp", "linear", 0.8, seed, loss)
        for loss in ("harmonic", "linear", "l2")
        for seed in range(12)
    ]
    scores = {"harmonic": 0.7, "linear": 0.9, "l2": 0.6}
    place = place_of(planted(own, lambda cell: scores[cell.loss]))
    found = {row["loss"]: row for row in comparisons([place], list(scores), "harmonic", "epochs")}
    linear, distance = (found[ARMS[loss].label] for loss in ("linear", "l2"))
    assert (linear["verdict"], distance["verdict"]) == ("better", "worse")
    assert linear["p, Holm"] == pytest.approx(2 * 2 / 2**12)


def test_structure_elsewhere_is_tabulated_where_there_is_any_and_a_diverged_run_counts() -> None:
    spec = replace(SPEC, protocols=("matched",), models=("mlp",), losses=("harmonic", "harmonic_untied", "arcface"))
    found = results(leading, spec=spec)
    for cell, one in found.items():
        centers = None if ARMS[cell.loss].tied else 0.0 if cell.seed else 0.5
        raw = 0.25 if ARMS[cell.loss].head in DIRECTIONS else one.metrics["structure"]
        metrics = {"center_structure": centers, "structure_raw": raw}
        if cell.loss == "harmonic_untied" and cell.seed == 1:
            metrics = {"center_structure": None, "structure_raw": 0.0, "structure": 0.0, "diverged_at": 3}
        found[cell] = replace(one, metrics={**one.metrics, **metrics})
    rows = table(MLP.summarize(spec, found).tables, ELSEWHERE).rows
    assert [row["arm"] for row in rows] == ["harmonic, untied", "ArcFace"] * 2
    assert {row["task"] for row in rows} == {"Modular addition", "Permutation composition"}
    untied = next(row for row in rows if row["arm"] == "harmonic, untied")
    assert untied["of the head's own weight"].startswith("0.05 ")  # 0.5 and nine times 0
    assert untied["runs"] == 10
    arcface = next(row for row in rows if row["arm"] == "ArcFace")
    assert arcface["at their own length"] == "0.25 [0.25, 0.25]"
    assert arcface["of the head's own weight"] == ""
    assert not any(one.title == ELSEWHERE for one in MLP.summarize(spec, results(leading, spec=spec)).tables)


def test_untying_changes_the_initial_weights_as_the_page_says() -> None:
    task = find_task("genealogy")  # many tokens
    for model in MODELS:
        tied, untied = (
            settings_of("matched", model, loss, epochs=1).build(task, model, "harmonic")
            for loss in ("harmonic", "harmonic_untied")
        )
        spreads = [one.detach().std().item() for one in (tied.embedding, untied.embedding, untied.head.weight)]
        uniform, normal = 0.25 / 3**0.5, 0.25
        expected = [uniform if model == "mlp" else normal, normal, uniform]
        assert spreads == pytest.approx(expected, rel=0.05)


def test_figures_show_every_rival_the_tuned_square_and_the_search() -> None:
    with house_style():
        pictures = MLP.draw(SPEC, results(leading))
        axes = pictures["effects_structure_matched"].figure.axes[0]
        labels = [label.get_text() for label in axes.get_yticklabels()]
        assert [label.removesuffix(UNTIED) for label in labels] == [
            ARMS[one].label for one in ARMS if one != "harmonic"
        ]
        marked = {label.removesuffix(UNTIED) for label in labels if label.endswith(UNTIED)}
        assert marked == {arm.label for name, arm in ARMS.items() if not arm.tied and name != "harmonic_untied"}
        shown = pictures["effects_structure_authors"].figure.axes[0].get_yticklabels()
        assert not any(label.get_text().endswith(UNTIED) for label in shown)
        lines = pictures["tuned_effects"].figure.axes[-1].lines  # late test accuracy, mean over the tasks
        ends = [line.get_ydata() for line in lines if len(line.get_xdata()) == 2 and line.get_linestyle() == "-"]
        assert [list(np.round(end, 2)) for end in ends] == [[0.6, 0.65], [0.65, 0.9]]  # as `leading` has the corners
        assert len([axes for axes in pictures["search_mlp"].figure.axes if axes.images]) == len(ARMS)
