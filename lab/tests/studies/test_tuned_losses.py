"""The tuned losses: each is built as it must be, and the search chooses what it says and is found again."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harmax.heads import HarmonicHead
from harmax_lab.algorithmic import anchors
from harmax_lab.algorithmic.protocols import Settings, settings
from harmax_lab.algorithmic.training import split_of, task_of, train
from harmax_lab.kit.experiment import Context
from harmax_lab.kit.store import CellResult
from harmax_lab.losses import LOSSES as KNOWN
from harmax_lab.models import MODELS
from harmax_lab.studies import tuned_losses
from harmax_lab.studies.rivals import FULL, RivalsSpec, cells
from harmax_lab.studies.score_runs import DIRECTIONS, LATE, compact, mean_accuracy, structure_score
from harmax_lab.studies.tuned_losses import (
    ARMS,
    LOSSES,
    VARIANTS,
    RivalCell,
    Searched,
    Trial,
    find_arm,
    reads_out,
    run_cells,
    search,
    settings_of,
    trial_settings,
    trials,
)
from harmax_lab.tasks import PROTOCOLS, find_task

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


def test_every_loss_is_a_loss_and_is_built_for_both_models_as_it_must_be() -> None:
    assert {arm.head for arm in ARMS.values()} <= set(KNOWN)
    assert len(LOSSES) == 17
    task = find_task("lattice", protocol="authors")
    for name, arm in ARMS.items():
        for model in ("mlp", "transformer"):
            for protocol in ("authors", "matched") if name not in VARIANTS else ("matched",):
                how = settings_of(protocol, model, name, epochs=1)
                built = how.build(task, model, arm.head)
                assert isinstance(built.head, KNOWN[arm.head])
                assert (built.head.weight is built.embedding) == how.tied
                assert protocol == "authors" or (how.tied, how.bias) == (arm.tied, arm.bias)
                assert all(getattr(built.head, option) == value for option, value in arm.options)
                assert arm.exponent is None or built.head.exponent == arm.exponent


def test_the_papers_two_arms_are_the_authors_under_their_protocol() -> None:
    for model in ("mlp", "transformer"):
        for head in ("linear", "harmonic"):
            assert settings_of("authors", model, head, epochs=9) == settings("authors", model, head, epochs=9)


def test_the_square_root_of_the_width_is_the_default_exponent_of_the_head_and_all_that_differs() -> None:
    for model in MODELS:
        root, two = (settings_of("matched", model, loss, epochs=1) for loss in ("harmonic_root", "harmonic"))
        built = root.build(find_task("lattice"), model, "harmonic")
        assert root.exponent == HarmonicHead(built.head.in_features, 2).exponent
        assert replace(root, exponent=two.exponent) == two


def test_the_search_of_mlps_is_as_long_as_their_final_runs() -> None:
    assert FULL.search_epochs("mlp") == FULL.epochs("mlp")
    assert 3 * FULL.search_epochs("transformer") == 2 * FULL.epochs("transformer")


def test_gaussian_prototypes_have_the_squared_distance_itself() -> None:
    model = settings_of("matched", "mlp", "gaussian", epochs=1).build(find_task("lattice"), "mlp", "gaussian")
    x = torch.tensor([[1.0] * 8 + [-2.0] * 8])
    want = -(x - model.head.weight).square().sum(1)
    torch.testing.assert_close(model.head(x)[0], want)


def test_losses_over_pairs_read_out_and_have_batches_with_pairs_in_them() -> None:
    assert {name for name in ARMS if reads_out(name)} == {"supcon", "infonce", "contrastive"}
    for name, arm in ARMS.items():
        sizes = {settings_of(one, model, name, epochs=1).batch_size for one in PROTOCOLS for model in MODELS}
        assert sizes == {256 if reads_out(name) else 32}
        assert not (reads_out(name) and arm.tied)
    how = settings_of("matched", "mlp", "infonce", epochs=7)
    assert trial_settings(FULL, trials(FULL, [("infonce", "mlp")])[0]).batch_size == how.batch_size
    with pytest.raises(ValueError, match="'infonce'"):
        reads_out("infonze")


def test_heads_that_see_directions_are_those_that_do_not_see_lengths() -> None:
    generator = torch.Generator().manual_seed(0)
    x, factor = torch.randn(6, 16, generator=generator), 1 + 4 * torch.rand(25, 1, generator=generator)
    blind = set()
    for name, arm in ARMS.items():
        head = settings_of("matched", "mlp", name, epochs=1).build(find_task("lattice"), "mlp", arm.head).head
        before = head(x)
        head.weight.data *= factor
        if torch.allclose(head(x), before, atol=1e-4):
            blind.add(arm.head)
    assert blind == DIRECTIONS


def test_the_margin_is_there_before_half_of_the_shortest_search_is_over() -> None:
    def softmax_part(trial: Trial, share: float) -> float:
        how = trial_settings(FULL, trial)
        head = how.build(task_of(trial), trial.model, trial.head).head
        updates = share * how.epochs * math.ceil(len(split_of(trial).train) / how.batch_size)
        return head.annealing_base * (1 + head.annealing_rate * updates) ** -head.annealing_power

    own = trials(FULL, [("large_margin", model) for model in FULL.models])
    first = {(trial.model, trial.task): trial for trial in reversed(own)}
    assert len(first) == 6
    assert max(softmax_part(trial, 0.5) for trial in first.values()) < 1
    assert min(softmax_part(trial, 0.0) for trial in first.values()) == 1000
    for loss in ("large_margin", "gaussian"):
        final = settings_of("matched", "mlp", loss, epochs=1)
        searched = trial_settings(FULL, trials(FULL, [(loss, "mlp")])[0])
        assert replace(searched, epochs=1, learning_rate=2e-3, weight_decay=1e-2) == final


def test_unknown_losses_name_the_nearest() -> None:
    with pytest.raises(ValueError, match="'arcface'"):
        find_arm("arkface")


def test_held_out_seeds_are_held_out() -> None:
    assert not set(FULL.search_seeds) & set(anchors.SEEDS)
    with pytest.raises(ValueError, match="must be held out"):
        replace(FULL, seeds=(1, 2003))


def test_every_loss_has_the_same_search() -> None:
    pairs = [("linear", "mlp"), ("arcface", "mlp"), ("supcon", "transformer")]
    assert len(trials(FULL, pairs)) == 3 * 20 * 5 * 3
    grids = []
    for pair in pairs:
        how = [trial_settings(FULL, trial) for trial in trials(FULL, [pair])]
        grids.append({(one.learning_rate, one.weight_decay) for one in how})
        assert {one.epochs for one in how} == {FULL.search_epochs(pair[1])}
    assert grids[0] == grids[1] == grids[2]
    assert len(grids[0]) == 20


def test_the_best_is_chosen_and_among_equals_the_soonest() -> None:
    late, whole = np.zeros((4, 3)), np.zeros((4, 3))

    def choice() -> tuple[int, int]:
        return Searched(*(np.repeat(array[..., None, None], 2, axis=3) for array in (late, whole))).choice

    late[2, 1], whole[2, 1] = 0.8, 0.1
    assert choice() == (2, 1)
    late[0, 2], whole[0, 2] = 0.795, 0.5
    assert choice() == (0, 2)
    late[0, 2] = 0.78
    assert choice() == (2, 1)


def ends_of(spec: RivalsSpec, rate: float, decay: float) -> list[str]:
    choices = spec.choices_of("linear", {"learning_rate": rate, "weight_decay": decay})
    return [choice.name for choice in choices if choice.at_end]


@pytest.mark.parametrize(
    ("choice", "ends"),
    [
        ((1, 1), []),
        ((1, 0), []),
        ((0, 1), ["learning rate"]),
        ((3, 1), []),
        ((4, 1), ["learning rate"]),
        ((2, 2), []),
        ((2, 3), ["weight decay"]),
        ((0, 3), ["learning rate", "weight decay"]),
    ],
)
def test_no_weight_decay_is_no_end(choice: tuple[int, int], ends: list[str]) -> None:
    assert ends_of(FULL, FULL.learning_rates[choice[0]], FULL.weight_decays[choice[1]]) == ends
    assert ends_of(replace(FULL, weight_decays=(0.01, 0.3, 1.0)), 2e-3, 0.01) == ["weight decay"]


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
    first = dict(search(TINY, pairs, Context(tmp_path)))

    def refuse(wanted: Any, *rest: Any, **options: Any) -> Iterator[Any]:
        assert not wanted
        return iter(())

    monkeypatch.setattr(tuned_losses, "train", refuse)
    again = dict(search(TINY, pairs, Context(tmp_path)))
    for pair in pairs:
        np.testing.assert_array_equal(again[pair].late, first[pair].late)


def test_a_loss_whose_search_fails_leaves_the_others_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(spec: RivalsSpec, pairs: list[tuple[str, str]], context: Context, **options: Any) -> Iterator[Any]:
        yield from search(spec, pairs[:1], context, **options)
        raise RuntimeError("on purpose")

    monkeypatch.setattr(tuned_losses, "search", broken)
    came: list[str] = []
    with pytest.raises(RuntimeError, match="on purpose"):
        came.extend(cell.loss for cell, _ in run_cells(TINY, cells(TINY), Context(tmp_path)))
    assert came == ["harmonic"]


def test_a_damaged_note_of_the_search_costs_a_search(tmp_path: Path) -> None:
    first = dict(search(TINY, [("linear", "mlp")], Context(tmp_path)))
    (note,) = (tmp_path / "search").iterdir()
    note.write_text("{")
    again = dict(search(TINY, [("linear", "mlp")], Context(tmp_path)))
    np.testing.assert_array_equal(again["linear", "mlp"].late, first["linear", "mlp"].late)


@pytest.mark.parametrize("loss", ["supcon", "infonce", "contrastive"])
def test_losses_over_pairs_learn_to_add(loss: str, tmp_path: Path) -> None:
    cell = RivalCell("matched", "modular_addition", "mlp", ARMS[loss].head, 0.8, 1, loss)
    usual = settings_of("matched", "mlp", loss, epochs=90)
    how = replace(usual, learning_rate=FULL.learning_rates[-1], weight_decay=0.0)
    ((_, found),) = train([cell], lambda cell: how, Context(tmp_path), snapshots=2)
    assert mean_accuracy(found.curves["test_accuracy"], LATE) > 10 / 31


def test_what_an_untied_head_learned_is_kept(tmp_path: Path) -> None:
    # Of whose 42 tokens 40 are shown.
    own = [
        RivalCell("matched", "equivalence", model, "linear", 0.8, 3, loss)
        for model, loss in (("mlp", "linear_untied"), ("transformer", "linear_untied"), ("mlp", "linear"))
    ]

    def how(cell: RivalCell) -> Settings:
        return settings_of(cell.protocol, cell.model, cell.loss, epochs=2)

    def run(name: str, **options: bool) -> dict[RivalCell, CellResult]:
        return dict(train(own, how, Context(tmp_path / name), snapshots=2, **options))  # results are set aside there

    plain, kept = run("plain"), run("kept", centers=True)
    for cell in own:
        assert "centers" not in plain[cell].arrays
        for name, array in plain[cell].arrays.items():
            np.testing.assert_array_equal(kept[cell].arrays[name], array)
        (compacted,) = (one for _, one in compact([(cell, kept[cell])]))
        if cell.loss == "linear":
            assert "centers" not in kept[cell].arrays
            assert compacted.metrics["center_structure"] is None
            continue
        centers = compacted.arrays["centers"]
        assert centers.shape == compacted.arrays["embedding"].shape == (1, 40, 16)
        assert centers.dtype == np.float32
        # Trained, and not what the embedding holds.
        torch.manual_seed(cell.seed)
        start = how(cell).build(task_of(cell), cell.model, "linear")
        before = start.head.weight.detach()[task_of(cell).shown].numpy()
        assert 0 < np.abs(centers[0] - before).max() < 0.5
        assert np.abs(centers - compacted.arrays["embedding"]).max() > 0.1
        want = structure_score(task_of(cell).structure, centers[0].astype(float))
        assert compacted.metrics["center_structure"] == want != compacted.metrics["structure"]
