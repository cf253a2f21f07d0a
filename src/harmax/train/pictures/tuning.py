"""Training the whole network a little further, after its head."""

# B pictures of a batch

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from harmax.train.pictures.features import read_square
from harmax.train.pictures.model import PictureClassifier
from harmax.train.vision.augment import ORDER, generator
from harmax.train.vision.pictures import Pictures
from harmax.train.vision.preparation import Preparation

RATE = 1e-4
"""Peak learning rate of AdamW for the network."""


def fine_tune(
    model: PictureClassifier,
    preparation: Preparation,
    pictures: Pictures,
    *,
    epochs: int,
    batch: int,
    head_rate: float,
    seed: int,
    device: torch.device,
    tell: Callable[[str], object] = lambda words: None,
) -> float:
    """Train network and head on random crops, half of them mirrored, and return the loss of the last epoch.

    The statistics of BatchNorm stay those of the pretrained network: a few pictures would only blur them.

    Args:
        model: the classifier, on its device.
        preparation: how pictures are prepared.
        pictures: random crops of the training pictures.
        epochs: passes over them. The learning rate falls along a line to 0.
        batch: pictures per step.
        head_rate: peak learning rate of the centers, in their own units.
        seed: of the order of the pictures.
        device: where the model is.
        tell: receives a line about the progress.
    """
    groups = [
        {"params": list(model.backbone.parameters()), "lr": RATE},
        {"params": list(model.head.parameters()), "lr": head_rate, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=1e-4)
    labels = torch.from_numpy(pictures.folder.labels)
    steps = -(-len(labels) // batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (epochs * steps))
    mean = float("nan")
    for epoch in range(epochs):
        _train_mode(model)
        total = 0.0
        order = torch.from_numpy(generator(ORDER, seed, epoch).permutation(len(labels)))
        for place, rows in enumerate(order.split(batch)):
            tell(f"fine-tuning: epoch {epoch + 1} of {epochs}, step {place + 1} of {steps}")
            squares = np.stack([read_square(pictures, int(row), epoch) for row in rows])
            loss = F.cross_entropy(
                model(preparation.prepare(torch.from_numpy(squares).to(device))), labels[rows].to(device)
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(rows)
        mean = total / len(labels)
        if not np.isfinite(mean):
            raise FloatingPointError(f"non-finite loss in epoch {epoch + 1} of fine-tuning; leave --fine-tune out.")
    model.eval()
    return mean


def _train_mode(model: PictureClassifier) -> None:
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
