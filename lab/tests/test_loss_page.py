"""Is it the loss: what the page says of data, losses and rules is what the code has, and results are filled in."""

import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

import loss_page
from harmax_lab.algorithmic import anchors
from harmax_lab.algorithmic.protocols import settings
from harmax_lab.kit.experiment import Experiment
from harmax_lab.kit.rules import LEAST_SEEDS
from harmax_lab.losses import LargeMarginHead, SphericalHead
from harmax_lab.studies import ablation, authors_losses, confounds, exponents, rivals
from harmax_lab.studies.compare_arms import MARGIN
from harmax_lab.studies.rivals import CORNERS
from harmax_lab.studies.score_runs import DIRECTIONS, LATE, WINDOW
from harmax_lab.studies.tables_and_figures import WITHOUT
from harmax_lab.studies.tuned_losses import ARMS, LOSSES, reads_out, settings_of
from harmax_lab.tasks import TASKS, find_task, make_split
from planted_studies import planted

RESULTS = Path(__file__).parent.parent / "results"
TEXT = (RESULTS / "is_it_the_loss.md").read_text()
PLAIN = " ".join(TEXT.split())


def rows_of(text: str, first: str) -> list[dict[str, str]]:
    """Read the table whose first column has that name."""
    lines = text[text.index(f"| {first} |") :].split("\n\n")[0].splitlines()
    head, _, *rows = ([entry.strip() for entry in line.strip("|").split("|")] for line in lines)
    return [dict(zip(head, row, strict=True)) for row in rows]


@pytest.mark.parametrize("task", TASKS)
def test_the_shares_of_leaked_rows_are_those_of_the_data(task: str) -> None:
    (row,) = (row for row in rows_of(TEXT, "task") if row["task"] == find_task(task).title)
    for protocol in ("authors", "matched"):
        same, turned = [], []
        for seed in anchors.SEEDS:
            split = make_split(find_task(task, protocol=protocol), seed)
            *asked, answer = split.test.T
            *learned, learnt_answer = split.train.T
            equal = answer[:, None] == learnt_answer
            exact = equal & np.all([one[:, None] == other for one, other in zip(asked, learned, strict=True)], axis=0)
            one, other = np.sort(asked, axis=0), np.sort(learned, axis=0)
            any_order = equal & (one[:, :, None] == other[:, None, :]).all(0)
            same.append(exact.any(1).mean())
            turned.append(any_order.any(1).mean())
        assert row[f"also in training, {protocol}"] == f"{100 * np.mean(same):.0f} %"
        assert row[f"so or reordered, {protocol}"] == f"{100 * np.mean(turned):.0f} %"
        assert protocol == "authors" or max(same) == 0


def test_every_loss_says_where_it_deviates_and_every_arm_how_it_is_built() -> None:
    start = TEXT.index("### What deviates from the publications")
    listed = set(re.findall(r"\*\*(.+?)\*\*", TEXT[start : TEXT.index("### What was found")]))
    assert listed == {ARMS[name].label for name in LOSSES}
    arms = {row["arm"]: row for row in rows_of(TEXT, "arm")}
    assert set(arms) == {arm.label for arm in ARMS.values()}
    for name, arm in ARMS.items():
        how, row = settings_of("matched", "mlp", name, epochs=1), arms[arm.label]
        assert (row["tied"], row["bias"]) == tuple("yes" if one else "no" for one in (how.tied, how.bias))
        assert int(row["batch"]) == how.batch_size
        assert (row["rows are measured"] == "at length one") == (arm.head in DIRECTIONS)


def test_numbers_in_sentences_are_the_codes() -> None:
    named = re.search(r"- (\w+) losses \(([^)]*)\) see the direction", PLAIN)
    assert named is not None
    assert set(named[2].split(", ")) == {arm.label for arm in ARMS.values() if arm.head in DIRECTIONS}
    assert named[1] == "Five"
    assert len(DIRECTIONS) == 5
    assert f"the first of {WINDOW} epochs in a row above 0.9" in PLAIN
    assert f"a margin, {MARGIN} of a score" in PLAIN
    assert f"Fewer than {LEAST_SEEDS} seeds" in PLAIN
    assert f"**Seeds.** {len(rivals.FULL.seeds)}, the authors'." in PLAIN
    assert f"{rivals.FULL.train_fraction:.0%} of the rows".replace("%", " %") in PLAIN
    powers = re.sub(
        r" \([^)]*\)", "", PLAIN[PLAIN.index("Powers of the distance") : PLAIN.index("and one that is learned")]
    )
    assert [float(one) for one in re.findall(r"\d+", powers)] == list(exponents.EXPONENTS)
    assert LATE == 0.1
    assert "the mean over the last tenth of its epochs" in PLAIN
    assert f"p ~ (w . x)^2 + {SphericalHead(2, 2).epsilon:.4f}" in PLAIN


def test_the_margin_comes_in_when_the_page_says() -> None:
    head, steps = LargeMarginHead(2, 2), math.ceil(len(make_split(find_task("genealogy"), 0).train) / 32)
    after = math.ceil((head.annealing_base ** (1 / head.annealing_power) - 1) / head.annealing_rate)
    assert f"after {after} updates" in PLAIN
    spec = rivals.FULL
    searched, final = (min(map(epochs, spec.models)) * steps for epochs in (spec.search_epochs, spec.epochs))
    assert f"in the shortest search {after / searched:.0%} of all".replace("%", " %") in PLAIN
    assert f"in the shortest final runs {after / final:.0%}.".replace("%", " %") in PLAIN


def test_what_the_page_says_of_conditions_is_what_they_change() -> None:
    distinct = {
        protocol: np.mean(
            [
                len(np.unique(make_split(find_task("modular_addition", protocol=protocol), seed).train, axis=0))
                for seed in anchors.SEEDS
            ]
        )
        for protocol in ("authors", "matched")
    }
    assert f"modular addition {distinct['authors']:.0f} instead of {distinct['matched']:.0f}," in PLAIN
    for condition in confounds.CHANGES:
        assert f"**{confounds.CONDITIONS[condition].label}**" in PLAIN
    ratios = [
        confounds.CONDITIONS["strong_decay"].weight_decay / settings("matched", model, "linear", epochs=1).weight_decay
        for model in ("transformer", "mlp")
    ]
    assert ratios == pytest.approx([60, 30])
    assert "sixty times the authors' for transformers and thirty times theirs for MLPs" in PLAIN


def test_losses_over_pairs_have_between_a_fifth_and_an_eighth_of_the_updates() -> None:
    shares = []
    for task in TASKS:
        rows = len(make_split(find_task(task), 0).train)
        large, small = (settings_of("matched", "mlp", loss, epochs=1).batch_size for loss in ("supcon", "linear"))
        shares.append(math.ceil(rows / large) / math.ceil(rows / small))
    assert min(shares) == pytest.approx(1 / 8)
    assert max(shares) == pytest.approx(1 / 5)
    assert [name for name in LOSSES if reads_out(name)] == ["supcon", "infonce", "contrastive"]


def stored(folder: Path, experiment: Experiment, spec: object, found: dict) -> None:
    """Store a summary as the report does."""
    path = folder / experiment.name / "summary.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"profile": "full", **asdict(experiment.summarize(spec, found))}))


def test_results_are_filled_in_and_without_them_the_page_says_so(tmp_path: Path) -> None:
    assert {loss_page.sections(tmp_path)[name] for name in loss_page.STUDIES} == {"Not run yet."}
    one = replace(rivals.FULL, seeds=(0, 1), models=("mlp",), protocols=("matched",), losses=CORNERS)
    found = planted(rivals.cells(one), lambda cell: 0.9 if cell.loss == "harmonic" else 0.5)
    grid = np.zeros((len(one.learning_rates), len(one.weight_decays), len(one.search_tasks), 1))
    with_search = {
        cell: replace(result, arrays={**result.arrays, "search_late": grid}) for cell, result in found.items()
    }
    stored(tmp_path, rivals.MLP, one, with_search)
    section = loss_page.study_section("rivals_mlp", tmp_path)
    tables = section.replace("**", "").split("\n\n")
    asked = [
        f"{tables[place - 1].removesuffix('.')} ({row['where']})."
        for place, table in enumerate(tables)
        if table.startswith("| where")
        for row in rows_of(table, "where")
        if row["verdict"] == "not decided"
    ]
    assert sorted(asked) == sorted(claim.statement for claim in rivals.MLP.claims)
    verdicts = rows_of(section, "loss")
    assert {row["against"] for row in verdicts} == {"harmonic"}
    assert {row["loss"] for row in verdicts} == {"cross-entropy", "distance, softmax", "spherical softmax"}
    effects = rows_of(section, "protocol")
    assert [row["task"] for row in effects] == ["mean of 5"] * 3
    assert float(effects[0]["distance"].split()[0]) == pytest.approx(0.2, abs=0.01)
    other = replace(ablation.FULL, seeds=(0, 1), models=("mlp",), protocols=("matched",))
    stored(tmp_path, ablation.EXPERIMENT, other, planted(ablation.cells(other), lambda cell: 0.5))
    assert len(rows_of(loss_page.study_section("ablation", tmp_path), "protocol")) == 3
    last = replace(confounds.FULL, seeds=(0, 1), models=("mlp",))
    stored(tmp_path, confounds.EXPERIMENT, last, planted(confounds.cells(last), lambda cell: 0.5))
    shown = rows_of(loss_page.study_section("confounds", tmp_path), "models")
    assert [row["task"] for row in shown] == ["mean of 5"] * 3
    assert WITHOUT in loss_page.study_section("confounds", tmp_path)


def test_arguments_that_nobody_tests_stand_beside_the_claims_of_their_study(tmp_path: Path) -> None:
    few = replace(authors_losses.FULL, seeds=(0, 1), models=("mlp",))
    found = planted(authors_losses.cells(few), lambda cell: 0.5)
    stored(tmp_path, authors_losses.EXPERIMENT, few, found)
    section = loss_page.study_section("authors_losses", tmp_path)
    for claim in authors_losses.ARGUMENTS:
        assert f"**{claim.statement}**" in section
        assert f"| {claim.not_run} | not run |" in section
