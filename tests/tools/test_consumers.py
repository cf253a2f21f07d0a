"""What reads logits: sampling, penalties and losses must be right with log-probabilities, or their limits are known."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harmax import HarmonicHead
from tools.plain import assert_harmonic, log_probabilities

EXPONENT = 128.0
"""Large, as in language models: unnormalized logits would lie near -120, where a penalty kills every repeated token."""


@pytest.fixture
def head() -> HarmonicHead:
    torch.manual_seed(0)
    head = HarmonicHead(16, 50, exponent=EXPONENT, scale=0.125).eval()
    assert_harmonic(features(), head, atol=1e-4)
    return head


def features() -> Tensor:
    return torch.randn(4, 16, generator=torch.Generator().manual_seed(1))


def test_a_repetition_penalty_is_a_power_of_the_probability(head: HarmonicHead) -> None:
    processors = pytest.importorskip("transformers.generation.logits_process")
    scores = head(features()).detach()
    repeated = scores.argsort(-1, descending=True)[:, :3]
    penalized = processors.RepetitionPenaltyLogitsProcessor(1.3)(repeated, scores)
    p = log_probabilities(features(), head).exp()
    weights = p.scatter(1, repeated, p.gather(1, repeated) ** 1.3)
    expected = weights / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(penalized.softmax(-1).double(), expected, rtol=1e-4, atol=1e-7)
    mass_before, mass_after = (mass.gather(1, repeated).sum(-1) for mass in (p, expected))
    assert (mass_after < mass_before).all()
    assert (mass_after > 0.1 * mass_before).all(), "a mild penalty must not make a token impossible"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TemperatureLogitsWarper", 0.7),
        ("TopKLogitsWarper", 5),
        ("TopPLogitsWarper", 0.8),
        ("MinPLogitsWarper", 0.05),
        ("TypicalLogitsWarper", 0.9),
        ("EtaLogitsWarper", 0.1),
        ("LogitNormalization", None),
    ],
)
def test_samplers_see_the_probabilities_of_the_head(head: HarmonicHead, name: str, value: float | None) -> None:
    """A sampler must do with the head's output what it does with any other logits of the same probabilities."""
    kind = getattr(pytest.importorskip("transformers.generation.logits_process"), name)
    sampler = kind() if value is None else kind(value)
    tokens = torch.zeros(4, 1, dtype=torch.int64)
    scores = head(features()).detach()
    shifted = log_probabilities(features(), head).detach().float() + 7.0
    got, expected = (sampler(tokens, logits.clone()).softmax(-1) for logits in (scores, shifted))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


def test_distributions_take_the_output_as_it_is(head: HarmonicHead) -> None:
    scores = head(features())
    p = log_probabilities(features(), head).exp()
    distribution = torch.distributions.Categorical(logits=scores)
    torch.testing.assert_close(distribution.probs.double(), p, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(distribution.entropy().double(), -(p * p.log()).sum(-1), rtol=1e-4, atol=1e-6)
    one_hot = torch.distributions.OneHotCategorical(logits=scores)
    torch.testing.assert_close(one_hot.probs.double(), p, rtol=1e-4, atol=1e-7)


def test_losses_of_one_class_agree(head: HarmonicHead) -> None:
    target = torch.tensor([0, 7, 9, 30])
    loss, scores = head(features(), target), head(features())
    torch.testing.assert_close(F.cross_entropy(scores, target), loss)
    torch.testing.assert_close(F.nll_loss(scores, target), loss)
    torch.testing.assert_close(F.kl_div(scores, F.one_hot(target, 50).float(), reduction="batchmean"), loss)


def test_binary_cross_entropy_asks_for_something_else(head: HarmonicHead) -> None:
    """The guide says so: it takes scores of independent classes, and probabilities that sum to 1 cannot all be large.

    Log-probabilities are at most 0. So every class would have at most a probability of one half.
    """
    scores = head(features())
    assert (scores.sigmoid() <= 0.5).all()
    both = torch.zeros(4, 50)
    both[:, :2] = 1
    at_best = F.binary_cross_entropy_with_logits(torch.zeros(4, 2), both[:, :2])
    assert F.binary_cross_entropy_with_logits(scores[:, :2], both[:, :2]) >= at_best
    # One class of many is binary cross-entropy on the probabilities themselves.
    odds = scores - torch.log1p(-scores.exp().clamp(max=1 - 1e-7))
    torch.testing.assert_close(odds.sigmoid(), scores.exp(), rtol=1e-4, atol=1e-7)
