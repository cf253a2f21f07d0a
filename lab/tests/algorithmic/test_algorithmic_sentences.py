"""What several claims share: a share of the runs, a mean per seed, and a control under the matched protocol."""

import pytest

from harmax_lab.algorithmic.runs import AlgorithmicSpec
from harmax_lab.algorithmic.sentences import over_seeds, passes, said
from harmax_lab.algorithmic.training import RunCell
from harmax_lab.kit.claims import Finding
from harmax_lab.kit.judges import opposite, reaches
from harmax_lab.kit.results import Results
from harmax_lab.kit.store import CellResult


@pytest.mark.parametrize(
    ("count", "total", "least", "answer"),
    [
        (18, 20, 0.9, True),
        (17, 20, 0.9, None),
        (14, 20, 0.9, False),
        (5, 20, 0.25, True),
        (2, 20, 0.25, None),
        (0, 20, 0.25, False),
        (0, 0, 0.5, None),
    ],
)
def test_a_share_is_reached_out_of_reach_or_open(count: int, total: int, least: float, answer: bool | None) -> None:
    assert reaches(count, total, least) is answer
    assert opposite(opposite(answer)) is answer


def test_each_seed_counts_once_with_the_mean_over_its_tasks_and_models() -> None:
    shares = {"lattice": 1.0, "genealogy": 0.0}
    found = {
        RunCell("authors", task, model, head, 0.8, seed): CellResult(metrics={"x": seed + share * (head == "harmonic")})
        for task, share in shares.items()
        for model in ("mlp", "transformer")
        for head in ("linear", "harmonic")
        for seed in (3, 5)
    }
    assert over_seeds(Results(None, found), "x", lambda harmonic, standard: harmonic - standard) == [0.5, 0.5]
    half = {cell: result for cell, result in found.items() if cell.head == "linear" or cell.seed == 3}
    assert over_seeds(Results(None, half), "x", lambda harmonic, standard: harmonic - standard) == [0.5]


def test_the_matched_protocol_is_a_control_and_names_no_sentence() -> None:
    papers, control = said("x", ("3.2/11",), "Only it does", lambda results: Finding(None, "", {}), task="genealogy")
    assert (papers.id, papers.control, papers.sentences) == ("x", False, ("3.2/11",))
    assert (control.id, control.control, control.sentences) == ("x_matched", True, ())
    assert papers.statement == "Only it does (authors protocol)."
    for protocol in AlgorithmicSpec().protocols:
        cell = RunCell(protocol, "genealogy", "mlp", "harmonic", 0.8, 0)
        assert papers.needs(cell) == (protocol == "authors") != control.needs(cell)


def test_a_run_passes_from_an_accuracy_of_0_9() -> None:
    assert passes(CellResult(metrics={"test_accuracy": 0.9}))
    assert not passes(CellResult(metrics={"test_accuracy": 0.89}))
