"""Stacks of small classifiers: what each seed sees, and the order it sees it in."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harmax_lab.vision import stacks
from harmax_lab.vision.little_data_features import generate_rows
from harmax_lab.vision.mnist_training import losses_of
from harmax_lab.vision.stacks import Formula, Network, StackSpec, initial_network, stack_logits, train_stack

# S seeds, K images learned from, B batch

SEEDS = (0, 3)
SPEC = StackSpec(seeds=SEEDS, factors=(1.5,), weight_decay=0.01)


def one_batch_after_the_other(rows_SK: Tensor, batch: int, steps: int) -> Iterator[Tensor]:
    """The batches, drawn when they are wanted: every pass in a new order, what is left over left out."""
    draws = [torch.Generator().manual_seed(seed) for seed in SEEDS]
    images, done = rows_SK.shape[1], 0
    while True:
        orders = torch.stack([torch.randperm(images, generator=generator) for generator in draws])
        for start in range(0, images - batch + 1, batch):
            if done == steps:
                return
            yield torch.stack([rows[order[start : start + batch]] for rows, order in zip(rows_SK, orders, strict=True)])
            done += 1


@pytest.mark.parametrize("hidden", [None, 6])
def test_numbers_sent_at_once_train_bit_for_bit_as_batches_one_by_one(hidden: int | None) -> None:
    data, steps, batch = generate_rows(6, 0, classes=4, features=8), 20, 5
    rows_SK = torch.stack([torch.randperm(24, generator=torch.Generator().manual_seed(seed))[:17] for seed in SEEDS])
    spec = replace(SPEC, batch_size=batch)
    arms, features = spec.arms, hidden or 8
    found = train_stack(spec, data, rows_SK, steps=steps, learning_rate=0.03, hidden=hidden)
    expected = initial_network(SEEDS, len(arms), 4, 8, hidden).map(lambda part: part.requires_grad_())
    parts = [part for part in expected if part is not None]
    optimizer = torch.optim.AdamW(parts, lr=0.03, weight_decay=0.01, fused=True)
    for rows_SB in one_batch_after_the_other(rows_SK, batch, steps):
        optimizer.zero_grad()
        logits = stack_logits(expected, Formula.of(arms, features, "cpu"), data.x_ND[rows_SB])
        losses_of(logits, data.y_N[rows_SB]).sum().backward()
        optimizer.step()
    for one, two in zip(found, expected, strict=True):
        assert (one is None) == (two is None)
        if one is not None and two is not None:
            assert torch.equal(one, two.detach())
    start = initial_network(SEEDS, len(arms), 4, 8, hidden)
    assert not torch.equal(found.weight_SAVF, start.weight_SAVF)


def test_seeds_that_are_trained_together_do_not_touch_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    data = generate_rows(6, 0, classes=4, features=8)
    rows_SK = torch.stack([torch.arange(24).roll(seed)[:12] for seed in SEEDS])

    def train() -> Network:
        return train_stack(replace(SPEC, batch_size=4), data, rows_SK, steps=8, learning_rate=0.03)

    together = train()
    monkeypatch.setattr(stacks, "STACK", 1)
    torch.testing.assert_close(together.weight_SAVF, train().weight_SAVF)
