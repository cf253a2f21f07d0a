"""`harmax bench ensemble`: what it says, not how fast anything is."""

import json
from collections.abc import Iterator

import pytest
import torch

from harmax.cli.main import main
from harmax_lab.algorithmic.protocols import settings
from harmax_lab.benchmark import Plain, TorchTransformer
from harmax_lab.models import Transformer
from harmax_lab.tasks import find_task, make_split


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("two_threads")
def test_the_smoke_test_measures_models_beside_its_plain_loop(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "ensemble", "--smoke", "--json"]) == 0
    assert torch.get_num_threads() == 2
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    models = [(row["model"], row["head"]) for row in rows]
    assert models == [("mlp", "harmonic")] * 2 + [("transformer", "linear")] * 2
    for plain, stacked in zip(rows[::2], rows[1::2], strict=True):
        assert (plain["loop"], plain["runs"], plain["ratio"]) == ("plain", 1, 1)
        assert (stacked["loop"], stacked["threads"]) == ("stacked", 1)
        assert stacked["runs"] > 1
        for row in (plain, stacked):
            assert 0 < row["us_p20"] <= row["us_per_run_step"] <= row["us_p80"]
            assert row["task"] == "modular_addition"
        assert stacked["ratio"] == pytest.approx(plain["us_per_run_step"] / stacked["us_per_run_step"], rel=0.02)
        assert stacked["predicted_mib"] > 0
        assert stacked["setup_seconds"] > 0


@pytest.mark.parametrize("model", ["mlp", "transformer"])
def test_the_plain_loop_trains(model: str) -> None:
    torch.manual_seed(0)
    task, how = find_task("modular_addition", protocol="authors"), settings("authors", model, "harmonic", epochs=1)
    plain = Plain(how.build(task, model, "harmonic"), make_split(task, 0, samples=200), how, "cpu")
    assert plain.run_steps == 4 * 5
    plain.run()
    losses = [curve[0] for curve in plain.curves]
    assert len(losses) == 4
    assert losses[-1] < losses[0]


def test_the_plain_transformer_is_as_large_as_ours() -> None:
    ours = Transformer(31, 2)
    sizes = [sum(parameter.numel() for parameter in model.parameters()) for model in (ours, TorchTransformer(ours))]
    assert sizes[0] == sizes[1]
