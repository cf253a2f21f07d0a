"""What came with the loss: planted gains give planted verdicts, and conditions change one thing for both losses."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harmax.figures import house_style
from harmax_lab.algorithmic.protocols import settings
from harmax_lab.algorithmic.training import split_of, stacks_of
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED
from harmax_lab.kit.experiment import Context
from harmax_lab.kit.tables import Table
from harmax_lab.studies.confounds import (
    CHANGES,
    CHANGES_TITLE,
    CONDITIONS,
    EXPERIMENT,
    FULL,
    GAINS_TITLE,
    HEADS,
    MATCHED,
    ConfoundCell,
    ConfoundSpec,
    cells,
    settings_of,
)
from harmax_lab.studies.tables_and_figures import WITHOUT
from harmax_lab.tasks import audit
from planted_studies import planted

SPEC = ConfoundSpec(seeds=tuple(range(12)))
Score = Callable[[str, str], float]


def summary(score: Score, spec: ConfoundSpec = SPEC, spread: float = 0.01):
    found = planted(cells(spec), lambda cell: score(cell.head, cell.condition), spread=spread)
    return EXPERIMENT.summarize(spec, found)


def verdicts(score: Score, spec: ConfoundSpec = SPEC) -> dict[str, str]:
    """Return the verdicts on MLPs, by name."""
    found = summary(score, spec)
    assert [one.claim for one in found.verdicts] == [claim.id for claim in EXPERIMENT.claims]
    tail = "_mlp"
    return {one.claim.removesuffix(tail): one.verdict for one in found.verdicts if one.claim.endswith(tail)}


def always(head: str, condition: str) -> float:
    return 0.9 if head == "harmonic" else 0.5


def test_a_gain_that_nothing_changes_holds_in_every_way() -> None:
    assert set(verdicts(always).values()) == {REPRODUCED}


def test_where_cross_entropy_leads_everywhere_there_is_no_gain_and_no_change() -> None:
    found = verdicts(lambda head, condition: 0.5 if head == "harmonic" else 0.9)
    broken = {name for name, verdict in found.items() if verdict == NOT_REPRODUCED}
    assert broken == {*(f"gain_{name}" for name in CONDITIONS), "decay_instead"}
    assert {verdict for name, verdict in found.items() if name not in broken} == {REPRODUCED}


@pytest.mark.parametrize("condition", CHANGES)
def test_a_gain_that_one_condition_takes_away_breaks_what_is_said_of_it(condition: str) -> None:
    def score(head: str, there: str) -> float:
        # As good as each other there, and cross-entropy a little better.
        return {"harmonic": 0.7, "linear": 0.8}[head] if there == condition else always(head, there)

    found = verdicts(score)
    broken = {name for name, verdict in found.items() if verdict == NOT_REPRODUCED}
    moved = {f"gain_{condition}", f"structure_{condition}", f"accuracy_{condition}"}
    # Harmonic without decay is then behind cross-entropy without it.
    assert broken == moved | ({"decay_instead"} if condition == "no_decay" else set())
    assert set(found.values()) == {REPRODUCED, NOT_REPRODUCED}


def test_a_decay_that_does_for_cross_entropy_what_the_loss_does_breaks_one_claim() -> None:
    def score(head: str, condition: str) -> float:
        return 0.95 if condition == "strong_decay" else always(head, condition)

    found = verdicts(score)
    assert found["decay_instead"] == NOT_REPRODUCED
    assert found["gain_strong_decay"] == NOT_DECIDED
    assert found["structure_strong_decay"] == NOT_REPRODUCED
    assert found["gain_no_decay"] == REPRODUCED


def test_too_few_seeds_epochs_or_conditions_decide_nothing() -> None:
    for change in ({"seeds": (0, 1)}, {"mlp_epochs": FULL.mlp_epochs - 1}, {"conditions": ("drawn",)}):
        found = verdicts(always, replace(SPEC, **change))
        assert (found.pop("gain_drawn") == REPRODUCED) == ("conditions" in change)
        assert set(found.values()) == {NOT_DECIDED}


def table(found: tuple[Table, ...], title: str) -> Table:
    (one,) = (table for table in found if table.title == title)
    return one


def test_tables_hold_the_planted_gains_and_changes_and_are_corrected_for_all() -> None:
    def score(head: str, condition: str) -> float:
        return always(head, condition) - (0.1 if (head, condition) == ("harmonic", "drawn") else 0)

    made = summary(score, spread=0.0).tables
    for row in table(made, GAINS_TITLE).rows:
        assert row["as matched"] == "+0.400 [+0.400, +0.400]"
        assert row["data drawn as by the authors"] == "+0.300 [+0.300, +0.300]"
        assert row["seeds"] == 12
    for row in table(made, CHANGES_TITLE).rows:
        assert row["data drawn as by the authors"] == "-0.100 [-0.100, -0.100]"
        assert row["untied"] == "+0.000 [+0.000, +0.000]"
        # Two models, six rows and four changes, of which those of the data are all there is.
        assert row["p, Holm, data drawn as by the authors"] == pytest.approx(48 * 2 / 2**12)
        assert row["p, Holm, untied"] == 1


def test_what_a_mean_rests_on_is_seen_without_each_task() -> None:
    found = planted(
        cells(SPEC),
        lambda cell: always(cell.head, cell.condition) if cell.task == "permutation" else 0.5,
        spread=0.0,
    )
    rows = {(row["models"], row["of"]): row for row in table(EXPERIMENT.summarize(SPEC, found).tables, WITHOUT).rows}
    assert len(rows) == 2 * len(CONDITIONS)
    row = rows["transformers", "untied"]
    assert row["all tasks"] == "+0.080 [+0.080, +0.080]"
    assert row["without Lattice"] == "+0.100 [+0.100, +0.100]"
    assert row["without Permutation composition"] == "+0.000 [+0.000, +0.000]"
    few = replace(SPEC, tasks=("lattice", "permutation"))
    assert WITHOUT not in {one.title for one in summary(always, few).tables}


def test_conditions_change_one_thing_and_the_same_for_both_losses() -> None:
    for model in FULL.models:
        for name, condition in CONDITIONS.items():
            own = [ConfoundCell(condition.protocol, "lattice", model, head, 0.8, 0, name) for head in HEADS]
            assert len({settings_of(FULL, cell) for cell in own}) == 1
            usual = settings("matched", model, "linear", epochs=FULL.epochs(model))
            different = {
                field
                for field in usual.__dataclass_fields__
                if getattr(settings_of(FULL, own[0]), field) != getattr(usual, field)
            }
            changed = {"no_decay": {"weight_decay"}, "strong_decay": {"weight_decay"}, "untied": {"tied"}}
            assert different == changed.get(name, set())


def test_the_authors_data_leak_and_repeat_and_all_others_are_the_same_rows() -> None:
    own = [cell for cell in cells(FULL) if (cell.task, cell.seed, cell.model) == ("genealogy", 0, "mlp")]
    rows = {cell: split_of(cell) for cell in own}
    clean = {cell: split for cell, split in rows.items() if cell.condition != "drawn"}
    assert len({split.train.tobytes() + split.test.tobytes() for split in clean.values()}) == 1
    assert {audit(split).leak for split in clean.values()} == {0}
    (drawn,) = {split.train.tobytes(): split for cell, split in rows.items() if cell.condition == "drawn"}.values()
    assert audit(drawn).leak > 0.8
    assert len({tuple(row) for row in drawn.train.tolist()}) < len(drawn.train)


def test_all_that_is_tied_is_trained_together_whatever_its_data_and_decay() -> None:
    spec = replace(FULL, seeds=(0,), models=("mlp",), tasks=("modular_addition", "permutation"), mlp_epochs=1)
    stacks = [stack for stack, _ in stacks_of(cells(spec), lambda cell: settings_of(spec, cell), "cpu")]
    assert sorted(len(stack) for stack in stacks) == [2, 2, 8, 8]


def test_a_short_study_is_trained_judged_and_drawn(tmp_path: Path) -> None:
    spec = replace(FULL, seeds=(0, 1), models=("mlp",), tasks=("modular_addition",), mlp_epochs=1)
    found = dict(EXPERIMENT.work.run_cells(spec, cells(spec), Context(tmp_path)))
    assert set(found) == set(cells(spec))
    decays = {cell.condition: one.metrics["weight_decay"] for cell, one in found.items()}
    assert decays == {MATCHED: 0.01, "drawn": 0.01, "no_decay": 0, "strong_decay": 0.3, "untied": 0.01}
    assert {cell.condition for cell, one in found.items() if "centers" in one.arrays} == {"untied"}
    assert {cell.condition for cell, one in found.items() if one.metrics["leak"] > 0} == {"drawn"}
    (place,) = spec.places(found)
    assert place.protocol == "matched"
    assert len(place.arms) == len(HEADS) * len(CONDITIONS)
    with house_style():
        (picture,) = EXPERIMENT.draw(spec, found).values()
    labels = [text.get_text() for text in picture.figure.axes[0].get_yticklabels()]
    assert labels == [condition.label for condition in CONDITIONS.values()]


def test_the_figure_shows_the_planted_gain_of_every_task_and_of_their_mean() -> None:
    found = planted(cells(SPEC), lambda cell: always(cell.head, cell.condition), spread=0.0)
    with house_style():
        (picture,) = EXPERIMENT.draw(SPEC, found).values()
    for axes in picture.figure.axes:
        marks = [line for line in axes.lines if len(line.get_xdata()) == 1]
        assert len(marks) == (len(SPEC.tasks) + 1) * len(CONDITIONS)
        assert {round(float(line.get_xdata()[0]), 6) for line in marks} == {0.4}
