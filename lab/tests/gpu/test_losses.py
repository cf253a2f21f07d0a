"""Every loss trained in an ensemble on a GPU, recorded as a graph: python -m pytest -m gpu."""

import pytest
import torch

from ensemble.twins import MIXED, assert_same_curves, assert_same_parameters, copies, ensemble_of, plan_of, train_alone
from harmax_lab.ensemble import fit
from harmax_lab.losses import LOSSES

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

BODIES = [("mlp", head) for head in LOSSES] + [("transformer", "arcface"), ("transformer", "supcon")]


@pytest.mark.parametrize(("model", "head"), BODIES)
def test_every_loss_ends_where_the_plain_loop_on_the_cpu_does(model: str, head: str) -> None:
    size = {"layers": 1} if model == "transformer" else {}
    ensemble = ensemble_of(MIXED, model, head=head, tied=False, device="cuda", **size)
    alone = copies(ensemble)
    plan = plan_of(MIXED, exponent=False, compile=True)
    history = fit(ensemble, [run.split for run in MIXED], plan)
    assert history.compiled
    for number, (twin, run) in enumerate(zip(alone, MIXED, strict=True)):
        assert_same_curves(history, number, train_alone(twin, run, plan))
    assert_same_parameters(ensemble, alone, tolerance=1e-8)
