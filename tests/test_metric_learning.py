"""The loss for pytorch-metric-learning: its signature, its miners, reducers, wrappers and trainers."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("pytorch_metric_learning")

from pytorch_metric_learning import losses, miners, reducers, trainers
from torch.utils.data import TensorDataset

from harmax.metric_learning import HarmonicMetricLoss

LABELS = torch.arange(12) % 3


def embeddings() -> Tensor:
    return torch.randn(12, 8, generator=torch.Generator().manual_seed(0))


def loss_function(**options: object) -> HarmonicMetricLoss:
    torch.manual_seed(0)
    return HarmonicMetricLoss(3, 8, **{"exponent": 4.0, "scale": 0.5, **options})


def test_the_loss_and_the_logits_are_those_of_the_head() -> None:
    loss = loss_function(prior=True)
    squared = (0.5 * embeddings().double()[:, None] - loss.head.weight.double()).square().sum(-1)
    expected = (-2 * squared.log()).log_softmax(1)
    torch.testing.assert_close(loss.get_logits(embeddings()).double(), expected, rtol=1e-5, atol=1e-5)
    value = loss(embeddings(), LABELS)
    torch.testing.assert_close(value.double(), -expected[range(12), LABELS].mean(), rtol=1e-5, atol=1e-5)
    assert sum(p.numel() for p in loss.parameters()) == 3 * 8 + 3


def test_a_miner_weighs_embeddings_by_how_often_it_chose_them() -> None:
    loss = loss_function(reducer=reducers.DoNothingReducer())
    each = loss(embeddings(), LABELS)["loss"]["losses"]
    chosen = (torch.tensor([0, 0, 1]), torch.tensor([3, 3, 4]), torch.tensor([5, 5, 5]))
    weighted = loss(embeddings(), LABELS, chosen)["loss"]["losses"]
    counts = torch.bincount(torch.cat(chosen), minlength=12)
    torch.testing.assert_close(weighted, each * counts / 3)
    mined = loss_function()(embeddings(), LABELS, miners.MultiSimilarityMiner()(embeddings(), LABELS))
    assert torch.isfinite(mined)


def test_wrappers_and_other_reducers_take_it() -> None:
    loss = loss_function(reducer=reducers.ThresholdReducer(low=1.0))
    each = loss_function(reducer=reducers.DoNothingReducer())(embeddings(), LABELS)["loss"]["losses"]
    torch.testing.assert_close(loss(embeddings(), LABELS), each[each > 1.0].mean())
    both = losses.MultipleLosses([loss_function(), losses.TripletMarginLoss()], weights=[1.0, 0.0])
    torch.testing.assert_close(both(embeddings(), LABELS), each.mean())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_trainer_of_the_library_trains_network_and_centers() -> None:
    torch.manual_seed(0)
    means = 3 * torch.randn(3, 5)
    x, y = torch.randn(120, 5) + means[torch.arange(120) % 3], torch.arange(120) % 3
    trunk, loss = torch.nn.Linear(5, 8), HarmonicMetricLoss(3, 8)
    before = loss.head.weight.detach().clone()
    trainer = trainers.MetricLossOnly(
        models={"trunk": trunk},
        optimizers={
            "trunk_optimizer": torch.optim.Adam(trunk.parameters(), 0.02),
            "metric_loss_optimizer": torch.optim.Adam(loss.parameters(), 0.02),
        },
        batch_size=30,
        loss_funcs={"metric_loss": loss},
        dataset=TensorDataset(x, y),
        data_device=torch.device("cpu"),
        dataloader_num_workers=0,
    )
    trainer.train(num_epochs=10)
    assert loss.head.scale is not None
    assert not torch.equal(loss.head.weight, before)
    assert (loss.get_logits(trunk(x)).argmax(1) == y).float().mean() > 0.95
    again = HarmonicMetricLoss(3, 8)
    again.load_state_dict(loss.state_dict())
    torch.testing.assert_close(again(trunk(x), y), loss(trunk(x), y))


def test_what_a_classification_loss_cannot_do_is_refused() -> None:
    with pytest.raises(TypeError, match="`distance` must be left out"):
        loss_function(distance=None)
    with pytest.raises(TypeError, match="unexpected keyword"):
        loss_function(weight_regularizer=None)
    with pytest.raises(ValueError, match="ref_emb is not supported"):
        loss_function()(embeddings(), LABELS, ref_emb=embeddings(), ref_labels=LABELS)
    with pytest.raises(ValueError, match="labels are required"):
        loss_function()(embeddings())
