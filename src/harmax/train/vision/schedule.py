"""The learning rate of each step."""

import math

from harmax.train.vision.settings import VisionSpec

FALL = 0.1
"""Factor on the learning rate at each milestone."""


def learning_rate(spec: VisionSpec, step: int, steps_of_epoch: int) -> float:
    r"""Return the learning rate of a step: a linear warm-up, then milestones, half a cosine or a straight line to 0.

    .. math:: \eta(s) = \eta_{max} \frac{s}{w} \; (s \le w), \qquad
        \eta_{max} \, 0.1^{k}, \quad \tfrac12 \eta_{max} (1 + \cos \pi t) \quad \text{or} \quad \eta_{max} (1 - t)

    with k the number of milestones passed, and t from 0 to 1 the part of the steps after the warm-up that is done.

    Args:
        spec: the peak, the warm-up w and the milestones, in epochs.
        step: s, from 1 on.
        steps_of_epoch: steps per epoch.

    >>> spec = VisionSpec(lr=0.1)
    >>> [round(learning_rate(spec, 100 * epoch + 1, 100), 6) for epoch in (0, 9, 10, 30, 60, 80)]
    [0.1, 0.1, 0.01, 0.001, 0.0001, 1e-05]
    >>> spec = VisionSpec(lr=1.0, schedule="triangle", warmup=2, epochs=10)
    >>> [round(learning_rate(spec, step, 1), 3) for step in (1, 2, 3, 6, 10)]
    [0.5, 1.0, 1.0, 0.625, 0.125]
    """
    warmup = round(spec.warmup * steps_of_epoch)
    if step <= warmup:
        return spec.lr * step / warmup
    if spec.schedule == "steps":
        epoch = (step - 1) // steps_of_epoch
        return spec.lr * FALL ** sum(epoch >= milestone for milestone in spec.milestones)
    # Steps done before this one: the first after the warm-up has the peak, and no step has 0.
    done = (step - 1 - warmup) / (spec.epochs * steps_of_epoch - warmup)
    return spec.lr * (0.5 * (1 + math.cos(math.pi * done)) if spec.schedule == "cosine" else 1 - done)
