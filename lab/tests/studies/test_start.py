"""Small transformers from the right start: planted gains give planted verdicts, and the factor is the library's own."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from harmax.heads.scale import length, matched_scale
from harmax_lab.kit.claims import NOT_DECIDED, NOT_REPRODUCED, REPRODUCED
from harmax_lab.models import Transformer
from harmax_lab.studies.start import ARMS, EXPERIMENT, FULL, MATCHED, MOST, StartCell, StartSpec, cells, settings_of
from harmax_lab.tasks import TASKS, find_task, make_split
from planted_studies import planted

SPEC = StartSpec(seeds=tuple(range(12)))
Score = Callable[[str, float], float]


def verdicts(score: Score, spec: StartSpec = SPEC, *, spread: float = 0.01) -> dict[str, str]:
    """Return the verdicts at exponent 2, by name; those at exponent 4 are the same."""
    runs = planted(cells(spec), lambda cell: score(cell.start, cell.train_fraction), spread=spread)
    found = EXPERIMENT.summarize(spec, runs)
    by_exponent = [
        {one.claim.removesuffix(f"_{name}"): one.verdict for one in found.verdicts if one.claim.endswith(f"_{name}")}
        for name in ("harmonic", "root")
    ]
    assert by_exponent[0] == by_exponent[1]
    return by_exponent[0]


def scaled(start: str) -> bool:
    return start in ("harmonic_scaled", "root_scaled")


def seen_by_head(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    seen: list[torch.Tensor] = []
    model.get_submodule("head").register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    model(tokens)
    return seen[0]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("start", ["harmonic_scaled", "root_scaled"])
def test_the_factor_is_what_the_library_finds_on_every_task(task: str, start: str) -> None:
    rows = torch.from_numpy(make_split(find_task(task), seed=0, train_fraction=MOST).train)
    how = replace(settings_of(FULL, StartCell("matched", task, "transformer", "harmonic", MOST, 0, start)), options=())
    for seed in FULL.seeds[:3]:
        torch.manual_seed(seed)
        model = how.build(find_task(task), "transformer", "harmonic")
        features, centers = seen_by_head(model, rows[:, :-1]), model.get_parameter("embedding")
        assert matched_scale(how.exponent, 16, length(features), length(centers)) == MATCHED


def test_a_cell_gets_its_exponent_and_its_factor_and_nothing_else_changes() -> None:
    for start, arm in ARMS.items():
        how = settings_of(FULL, StartCell("matched", "lattice", "transformer", arm.head, MOST, 0, start))
        assert how.exponent == arm.exponent
        assert dict(how.options) == ({} if arm.feature_scale == 1 else {"feature_scale": MATCHED})
        assert how.tied
        assert not how.dropout_in_tests
        assert how.epochs == 10_000


def test_a_factor_on_the_features_is_a_factor_on_what_the_head_sees() -> None:
    torch.manual_seed(0)
    usual = Transformer(11, 2, exponent=2.0)
    torch.manual_seed(0)
    shorter = Transformer(11, 2, exponent=2.0, feature_scale=0.5)
    tokens = torch.tensor([[1, 2], [9, 10]])
    assert torch.equal(seen_by_head(shorter, tokens), 0.5 * seen_by_head(usual, tokens))


def test_a_start_that_mends_everything() -> None:
    found = verdicts(lambda start, _: 0.95 if scaled(start) else 0.5 if start in ("harmonic", "root") else 0.8)
    assert found == {
        "easier_to_train": REPRODUCED,
        "more_structure": REPRODUCED,
        "not_for_cross_entropy": REPRODUCED,
        "still_harder": NOT_REPRODUCED,
        "still_more_data": NOT_REPRODUCED,
        "more_structure_than_cross_entropy": REPRODUCED,
    }


def test_a_start_that_harms() -> None:
    found = verdicts(lambda start, _: 0.3 if scaled(start) else 0.5 if start in ("harmonic", "root") else 0.8)
    assert found == {
        "easier_to_train": NOT_REPRODUCED,
        "more_structure": NOT_REPRODUCED,
        "not_for_cross_entropy": NOT_REPRODUCED,
        "still_harder": REPRODUCED,
        "still_more_data": REPRODUCED,
        "more_structure_than_cross_entropy": NOT_REPRODUCED,
    }


def test_a_factor_that_helps_cross_entropy_as_much_is_not_about_the_loss() -> None:
    def score(start: str, _: float) -> float:
        return 0.9 if scaled(start) else 0.95 if start == "linear_scaled" else 0.5

    found = verdicts(score)
    assert found["easier_to_train"] == REPRODUCED
    assert found["not_for_cross_entropy"] == NOT_REPRODUCED


def test_data_is_asked_for_at_all_fractions() -> None:
    def score(start: str, fraction: float) -> float:
        return 0.9 if fraction == MOST or start == "linear" else 0.3

    found = verdicts(score, spread=0)
    assert found["still_more_data"] == REPRODUCED
    assert found["still_harder"] == NOT_DECIDED
    assert verdicts(score, replace(SPEC, fractions=(MOST,)), spread=0)["still_more_data"] == NOT_DECIDED


def test_few_seeds_or_epochs_decide_nothing() -> None:
    for change in ({"seeds": (0, 1)}, {"transformer_epochs": 9_999}):
        assert set(verdicts(lambda start, _: 0.5 + 0.4 * scaled(start), replace(SPEC, **change)).values()) == {
            NOT_DECIDED
        }


def test_the_control_is_trained_once_and_a_smoke_run_draws() -> None:
    fractions = {cell.train_fraction for cell in cells(FULL) if cell.start == "linear_scaled"}
    assert fractions == {MOST}
    assert len(cells(FULL)) == 5 * 20 * (5 * 4 + 1)
    spec = EXPERIMENT.profiles["smoke"]
    found = planted(cells(spec), lambda cell: 0.9 if scaled(cell.start) else 0.5)
    (name,) = EXPERIMENT.draw(spec, found)
    assert name == "start"
