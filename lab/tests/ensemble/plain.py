"""The specification of `fit`: one run, one step after the other, as people write it.

It draws the same batches and drops the same entries as `fit`, so that both must give the same result.
"""

import torch
from torch import nn

from harmax_lab.ensemble.batches import DROPOUT, ORDER, TEST
from harmax_lab.ensemble.plan import CURVES, Plan
from harmax_lab.losses import WithLoss
from harmax_lab.models.random import derive_key, random_bits
from harmax_lab.tasks import Split


def fit_plain(model: nn.Module, split: Split, plan: Plan, seed: int) -> dict[str, list[float]]:
    """Train one model in place with `torch.optim.AdamW`; return the four curves.

    Args:
        model: takes tokens and a key.
        split: its data.
        plan: how to train, with one number for every setting.
        seed: of the order of rows and of dropout.
    """
    keys = [derive_key(torch.tensor(seed), purpose) for purpose in (ORDER, DROPOUT, TEST)]
    train, test = torch.from_numpy(split.train), torch.from_numpy(split.test)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=plan.per_run("learning_rate", 1)[0],
        weight_decay=plan.per_run("weight_decay", 1)[0],
        betas=plan.betas,
        eps=plan.epsilon,
    )
    graded = WithLoss(model, exact=plan.exact)
    updates = torch.zeros((), dtype=model.get_parameter("embedding").dtype)
    curves: dict[str, list[float]] = {name: [] for name in CURVES}
    for epoch in range(plan.longest):
        order = random_bits(derive_key(keys[ORDER], epoch), torch.arange(len(train))).argsort(stable=True)
        losses, right = [], 0
        for step, rows in enumerate(train[order].split(plan.batch_size)):
            key = derive_key(derive_key(keys[DROPOUT], epoch), step)
            logits, loss = graded(rows[:, :-1], key, target=rows[:, -1], step=updates)
            penalty = model.get_parameter("embedding").square().mean(0).sqrt().mean()
            optimizer.zero_grad()
            (loss + plan.penalty * penalty if plan.penalty else loss).backward()
            optimizer.step()
            updates += 1
            losses.append(loss.item())
            right += int((logits.argmax(-1) == rows[:, -1]).sum())
        with torch.no_grad():
            last = derive_key(keys[TEST], epoch) if plan.dropout_in_tests else None
            logits, loss = graded(test[:, :-1], last, target=test[:, -1], testing=True)
            curves["test_loss"].append(loss.item())
            curves["test_accuracy"].append(float((logits.argmax(-1) == test[:, -1]).float().mean()))
        curves["train_loss"].append(sum(losses) / len(losses))
        curves["train_accuracy"].append(right / len(train))
    return curves
