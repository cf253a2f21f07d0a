"""Random numbers that are a function of a key: uniform, independent, and the same however they are asked for."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from harmax_lab.models.random import Noise, derive_key, dropout, random_bits, scramble

COUNT = 2**16
TOP = 2**32


def uniform(bits: Tensor) -> Tensor:
    return bits.double() / TOP


def key_of(seed: int, *path: int) -> Tensor:
    key = torch.tensor(seed)
    for step in path:
        key = derive_key(key, step)
    return key


def stream(seed: int, *path: int) -> Tensor:
    return uniform(random_bits(key_of(seed, *path), torch.arange(COUNT)))


def correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one, other]))[0, 1])


def test_scrambling_loses_nothing() -> None:
    start = torch.tensor([0, 2**31 - COUNT, TOP - COUNT])
    values = scramble((start[:, None] + torch.arange(COUNT)).flatten())
    assert values.min() >= 0
    assert values.max() < TOP
    assert len(values.unique()) == 3 * COUNT


@pytest.mark.parametrize("seed", [0, 1, 2**31, TOP - 1])
def test_numbers_are_uniform(seed: int) -> None:
    values = stream(seed, 0)
    counts = torch.histc(values, 64, 0, 1)
    # Chi-square with 63 degrees of freedom; five standard deviations.
    assert float(((counts - COUNT / 64) ** 2 / (COUNT / 64)).sum()) < 63 + 5 * (2 * 63) ** 0.5
    bits = random_bits(key_of(seed, 0), torch.arange(COUNT))
    shares = torch.stack([((bits >> place) & 1).double().mean() for place in range(32)])
    assert (shares - 0.5).abs().max() < 5 * 0.5 / COUNT**0.5


NEIGHBORS: dict[str, Callable[[int], tuple[Tensor, Tensor]]] = {
    "indices": lambda seed: (stream(seed, 0)[:-1], stream(seed, 0)[1:]),
    "seeds": lambda seed: (stream(seed, 0), stream(seed + 1, 0)),
    "steps": lambda seed: (stream(seed, 1, 7), stream(seed, 1, 8)),
    "epochs": lambda seed: (stream(seed, 1, 7), stream(seed, 2, 7)),
    "purposes": lambda seed: (stream(seed, 0, 3), stream(seed, 1, 3)),
    "swapped": lambda seed: (stream(seed, 3, 7), stream(seed, 7, 3)),
}


@pytest.mark.parametrize("seed", [0, 1, 12345])
@pytest.mark.parametrize("which", NEIGHBORS)
def test_neighbors_have_nothing_to_do_with_each_other(which: str, seed: int) -> None:
    one, other = NEIGHBORS[which](seed)
    assert abs(correlation(one, other)) < 5 / len(one) ** 0.5
    # Nor has what is dropped: of entries that both drop at 0.1 there are a hundredth.
    both = float(((one < 0.1) & (other < 0.1)).double().mean())
    assert abs(both - 0.01) < 5 * (0.01 * 0.99 / len(one)) ** 0.5


def test_keys_of_seeds_epochs_and_steps_are_all_different() -> None:
    seed, purpose, epoch, step = torch.meshgrid(*map(torch.arange, (20, 3, 100, 30)), indexing="ij")
    keys = derive_key(derive_key(derive_key(seed, purpose), epoch), step)
    # Of 180,000 random numbers below 2^32 about four pairs are the same by chance.
    assert len(keys.unique()) > keys.numel() - 20
    assert abs(correlation(uniform(keys.flatten()[:-1]), uniform(keys.flatten()[1:]))) < 5 / keys.numel() ** 0.5


def test_a_key_gives_the_same_numbers_alone_stacked_and_mapped() -> None:
    keys, index = derive_key(torch.arange(5), 3), torch.arange(100)
    alone = torch.stack([random_bits(key, index) for key in keys])
    assert torch.equal(random_bits(keys[:, None], index), alone)
    assert torch.equal(torch.vmap(lambda key: random_bits(key, index))(keys), alone)
    assert torch.equal(torch.vmap(lambda key: Noise(key).bits(torch.Size([4, 25])))(keys).flatten(1), alone)


def test_shape_does_not_matter_nor_how_much_was_drawn_before() -> None:
    def draw(*shapes: tuple[int, ...]) -> list[Tensor]:
        noise = Noise(key_of(1, 2))
        return [noise.bits(torch.Size(shape)) for shape in shapes]

    first, second = draw((3, 4, 5), (10,))
    flat, again = draw((60,), (2, 5))
    assert torch.equal(first.flatten(), flat)
    assert torch.equal(second, again.flatten())
    assert torch.equal(draw((7,), (10,))[1], second)
    assert abs(correlation(*(uniform(bits) for bits in draw((COUNT,), (COUNT,))))) < 5 / COUNT**0.5


def test_more_than_a_stretch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`shape` must have at most 4194304 elements, got \(4194305,\); use smaller"):
        Noise(key_of(0)).bits(torch.Size([Noise.STRETCH + 1]))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_drops_its_share_and_scales_the_rest(rate: float) -> None:
    kept = dropout(torch.full((COUNT,), 3.0), rate, Noise(key_of(4, 0)))
    share = float((kept == 0).double().mean())
    assert abs(share - rate) < 5 * (rate * (1 - rate) / COUNT) ** 0.5
    torch.testing.assert_close(kept[kept != 0].unique(), torch.tensor([3 / (1 - rate)]))


def test_dropout_leaves_the_mean() -> None:
    x = torch.randn(16, generator=torch.Generator().manual_seed(0))
    keys = derive_key(torch.tensor(0), torch.arange(10_000))
    mean = torch.vmap(lambda key: dropout(x, 0.1, Noise(key)))(keys).mean(0)
    # An entry that is 0 or x / 0.9 has a standard deviation of x / 3.
    assert ((mean - x).abs() < 5 * x.abs() / 3 / 100).all()


def test_dropout_without_noise_or_rate_changes_nothing() -> None:
    x = torch.randn(50)
    assert torch.equal(dropout(x, 0.5, None), x)
    assert torch.equal(dropout(x, 0.0, Noise(key_of(0))), x)


def test_gradient_passes_where_entries_are_kept() -> None:
    x = torch.randn(1000, requires_grad=True)
    y = dropout(x, 0.3, Noise(key_of(9, 1)))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, torch.where(y == 0, 0.0, 1 / 0.7))


def test_every_order_is_as_likely() -> None:
    """Rows are shuffled by sorting random numbers: of four rows, all 24 orders, over 24,000 epochs."""
    keys = derive_key(torch.tensor(3), torch.arange(24_000))
    orders = random_bits(keys[:, None], torch.arange(4)).argsort(dim=1, stable=True)
    places = {order: number for number, order in enumerate(itertools.permutations(range(4)))}
    counts = np.bincount([places[tuple(order)] for order in orders.tolist()], minlength=24)
    # Chi-square with 23 degrees of freedom; five standard deviations.
    assert ((counts - 1000) ** 2 / 1000).sum() < 23 + 5 * (2 * 23) ** 0.5
