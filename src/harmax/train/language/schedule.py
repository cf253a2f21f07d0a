"""The learning rate of each step."""

import math

from harmax.train.language.settings import PretrainSpec


def learning_rate(spec: PretrainSpec, step: int) -> float:
    r"""Return the learning rate of a step: a linear warm-up, then half a cosine.

    .. math:: \eta(s) = \eta_{max} \frac{s}{w} \; (s \le w), \qquad
        \eta_{min} + \tfrac12 (\eta_{max} - \eta_{min}) \left(1 + \cos \pi \frac{s - w}{e - w}\right) \; (w < s \le e)

    Args:
        spec: the peak, the final rate, the warm-up w and the end of the decay e.
        step: s, from 1 on.

    >>> spec = PretrainSpec(lr=1.0, min_lr=0.2, warmup=10, decay_steps=110)
    >>> [round(learning_rate(spec, step), 3) for step in (1, 10, 60, 110, 500)]
    [0.1, 1.0, 0.6, 0.2, 0.2]
    """
    if step <= spec.warmup:
        return spec.lr * step / spec.warmup
    if step >= spec.end_of_decay:
        return spec.min_lr
    progress = (step - spec.warmup) / (spec.end_of_decay - spec.warmup)
    return spec.min_lr + 0.5 * (spec.lr - spec.min_lr) * (1 + math.cos(math.pi * progress))
