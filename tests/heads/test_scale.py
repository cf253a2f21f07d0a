"""Features and centers meet at one scale when training starts, whatever the network in front of the head does."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from harmax import HarmonicHead
from harmax.heads.describe import intrinsic_dimension
from harmax.heads.scale import length_behind, matched_ratio

D, V = 400, 1000


def features(length: float, rows: int = 64) -> torch.Tensor:
    return length * F.normalize(torch.randn(rows, D, generator=torch.Generator().manual_seed(0)), dim=1)


@pytest.mark.parametrize("exponent", [20.0, 80.0, 400.0])
@pytest.mark.parametrize("length", [0.01, 20.0, 3e4])
def test_random_centers_get_logits_that_differ_by_about_one(exponent, length):
    torch.manual_seed(0)
    head = HarmonicHead(D, V, exponent=exponent)
    deviation = head(features(length)).std(1).mean()
    assert head.scale is not None
    assert torch.tensor(head.scale).log2() % 1 == 0
    # The smallest exponent cannot reach 1; the power of two leaves a factor of up to sqrt(2).
    assert (0.3 if exponent == 20 else 0.6) < deviation < 1.5


def test_without_it_a_small_exponent_sees_nothing():
    torch.manual_seed(0)
    head = HarmonicHead(D, V, exponent=20.0, scale=1.0)
    assert head(features(20.0)).std(1).mean() < 0.1


def test_it_is_found_once_in_training_and_saved():
    head = HarmonicHead(D, V).eval()
    head(features(20.0))
    assert head.scale is None
    head.train()(features(20.0), torch.arange(64))
    found = head.scale
    head(features(2000.0))
    assert head.scale == found
    assert HarmonicHead.from_state_dict(head.state_dict()).scale == found
    head.reset_parameters()
    assert head.scale is None


def test_scaling_the_features_changes_nothing_at_the_start():
    torch.manual_seed(0)
    one, two = HarmonicHead(D, V), HarmonicHead(D, V)
    two.load_state_dict({"weight": one.weight.data})
    two.scale = None
    torch.testing.assert_close(one(features(1.0)), two(features(64.0)), rtol=1e-4, atol=1e-4)


def test_centers_and_distances_are_in_units_of_the_features():
    head = HarmonicHead(D, V)
    x = features(20.0)
    head.find_scale(x)
    torch.testing.assert_close(head.distance(x), torch.cdist(x, head.centers), rtol=1e-4, atol=1e-4)
    assert 0.3 < head.centers.norm(dim=1).mean() / 20 < 2


def test_class_means_are_centers_whatever_the_scale():
    x, y = features(20.0), torch.arange(64) % 4
    head = HarmonicHead(D, 4, scale=0.25)
    head.init_from_class_means(x, y)
    torch.testing.assert_close(head.centers[1], x[y == 1].mean(0))


@pytest.mark.parametrize("broken", [torch.zeros(3, D), torch.full((3, D), torch.nan)])
def test_features_without_a_length_decide_nothing(broken):
    head = HarmonicHead(D, V)
    head(broken)
    assert head.scale is None
    with pytest.raises(ValueError, match="must have finite lengths above 0 to find their scale"):
        head.find_scale(broken)


def test_a_traced_batch_is_announced():
    head = HarmonicHead(D, V)
    with pytest.warns(UserWarning, match="must be found from a real batch.*find_scale"):
        torch.vmap(head)(features(20.0)[:2, None])
    assert head.scale is None


def test_a_softening_is_in_units_of_the_features_as_they_are():
    head = HarmonicHead(D, V, softening=1.0)
    head(features(20.0))
    assert head.scale is None


def test_the_length_behind_a_norm():
    norm = nn.RMSNorm(D)
    norm.weight.data.fill_(0.5)
    assert length_behind(norm, D) == pytest.approx(10.0, rel=0.01)
    assert matched_ratio(20.0, D) == pytest.approx(2**0.5)


def test_a_description_says_what_to_change():
    torch.manual_seed(0)
    x, head = features(20.0), HarmonicHead(D, V, exponent=20.0, scale=1.0)
    found = head.describe(x)
    assert found.ratio == pytest.approx(20 / head.weight.norm(dim=1).square().mean().sqrt().item(), rel=1e-4)
    assert "call head.find_scale" in str(found)
    head.find_scale(x)
    assert head.training
    assert "nothing to change" in str(head.describe(x))
    assert HarmonicHead(D, V).describe(x).suggestions[0].startswith("the scale is not known yet")


def test_the_intrinsic_dimension_of_a_plane_in_many_dimensions():
    generator = torch.Generator().manual_seed(0)
    plane = torch.randn(1000, 2, generator=generator) @ torch.randn(2, D, generator=generator)
    assert intrinsic_dimension(plane) == pytest.approx(2, rel=0.15)
    assert intrinsic_dimension(torch.ones(5, D)) != intrinsic_dimension(torch.ones(5, D))  # NaN


@pytest.mark.parametrize(
    ("scale", "error"), [(0.0, ValueError), (-1.0, ValueError), ("2", TypeError), (True, TypeError)]
)
def test_a_scale_must_be_a_positive_number(scale, error):
    with pytest.raises(error, match="`scale` must be a"):
        HarmonicHead(D, V, scale=scale)
