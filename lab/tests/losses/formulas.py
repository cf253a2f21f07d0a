"""Every loss once more, row by row and class by class, as it stands in its publication: slow, and not the same code.

The numbers are 0-d tensors, so that autograd gives the gradient of the formula.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Vector = Sequence[Tensor]
Parameters = Mapping[str, Tensor]
Options = Mapping[str, Any]


def dot(a: Vector, b: Vector) -> Tensor:
    total = torch.zeros((), dtype=a[0].dtype)
    for one, other in zip(a, b, strict=True):
        total = total + one * other
    return total


def norm(a: Vector) -> Tensor:
    return dot(a, a).sqrt()


def distance(a: Vector, b: Vector) -> Tensor:
    return norm([one - other for one, other in zip(a, b, strict=True)])


def direction(a: Vector) -> list[Tensor]:
    length = norm(a)
    return [entry / length for entry in a]


def cosine(a: Vector, b: Vector) -> Tensor:
    return dot(a, b) / (norm(a) * norm(b))


def harmax_logit(d: Tensor, o: Options, default: float) -> Tensor:
    return -0.5 * o.get("exponent", default) * torch.log(d * d + o.get("softening", 0.0))


def root(x: Vector) -> float:
    return math.sqrt(len(x))


def biased(x: Vector, p: Parameters, j: int) -> Tensor:
    return dot(x, p["weight"][j]) + (p["bias"][j] if "bias" in p else 0.0)


def spherical(x: Vector, p: Parameters, j: int, o: Options) -> Tensor:
    return torch.log(biased(x, p, j) ** 2 + o.get("epsilon", 1e-4))


def stablemax(x: Vector, p: Parameters, j: int) -> Tensor:
    out = biased(x, p, j)
    return torch.log(out + 1 if out >= 0 else 1 / (1 - out))


def minkowski(x: Vector, w: Vector, order: float) -> Tensor:
    total = torch.zeros((), dtype=x[0].dtype)
    for one, other in zip(x, w, strict=True):
        total = total + abs(one - other) ** order
    return total ** (1 / order)


def full_mahalanobis(x: Vector, p: Parameters, j: int) -> Tensor:
    size, total = len(x), torch.zeros((), dtype=x[0].dtype)
    for column in range(size):
        along = torch.zeros((), dtype=x[0].dtype)
        for row in range(column, size):  # the lower triangle
            along = along + (x[row] - p["weight"][j][row]) * p["metric"][row][column]
        total = total + along * along
    return total.sqrt()


def arcface(x: Vector, w: Vector, o: Options) -> Tensor:
    m, angle = o.get("margin", 0.5), torch.acos(cosine(x, w))
    return torch.cos(angle + m) if angle <= math.pi - m else torch.cos(angle) - m * math.sin(m)


def large_margin(x: Vector, w: Vector, o: Options) -> Tensor:
    m, angle = o.get("margin", 4), torch.acos(cosine(x, w))
    k = next(k for k in range(m) if k * math.pi / m <= angle <= (k + 1) * math.pi / m)
    psi = (-1) ** k * torch.cos(m * angle) - 2 * k
    smoothing = 0.0
    if "step" in o:
        power = (1 + o.get("annealing_rate", 2.5e-5) * o["step"]) ** -o.get("annealing_power", 35.0)
        smoothing = max(o.get("annealing_least", 0.0), o.get("annealing_base", 1000.0) * power)
    return norm(w) * norm(x) * (smoothing * torch.cos(angle) + psi) / (1 + smoothing)


def isomax(x: Vector, p: Parameters, j: int) -> Tensor:
    return abs(p["distance_scale"]) * distance(direction(x), direction(p["weight"][j]))


def dismax(x: Vector, p: Parameters, j: int) -> Tensor:
    d = [isomax(x, p, k) / math.sqrt(2) for k in range(len(p["weight"]))]
    return -(d[j] + sum(d) / len(d))


Logit = Callable[[Vector, Parameters, int, int, Options], Tensor]

# The logit of class j in training, where class c is the right one.
LOGITS: dict[str, Logit] = {
    "harmonic": lambda x, p, j, c, o: harmax_logit(distance(x, p["weight"][j]), o, root(x)),
    "learnable": lambda x, p, j, c, o: -p["log_exponent"][0].exp() * distance(x, p["weight"][j]).log(),
    "linear": lambda x, p, j, c, o: biased(x, p, j),
    "l2": lambda x, p, j, c, o: -distance(x, p["weight"][j]),
    "dot_harmax": lambda x, p, j, c, o: harmax_logit(abs(dot(x, p["weight"][j])), o, root(x)),
    "student_t": lambda x, p, j, c, o: harmax_logit(distance(x, p["weight"][j]), {"softening": 1.0, **o}, root(x)),
    "gaussian": lambda x, p, j, c, o: -0.5 * o.get("precision", 1.0) * distance(x, p["weight"][j]) ** 2,
    "cosine_harmax": lambda x, p, j, c, o: harmax_logit(distance(direction(x), direction(p["weight"][j])), o, root(x)),
    "minkowski": lambda x, p, j, c, o: harmax_logit(minkowski(x, p["weight"][j], o.get("order", 1.0)), o, root(x)),
    "mahalanobis_diagonal": lambda x, p, j, c, o: harmax_logit(
        norm([(a - b) * s.exp() for a, b, s in zip(x, p["weight"][j], p["log_scale"], strict=True)]), o, root(x)
    ),
    "mahalanobis_full": lambda x, p, j, c, o: harmax_logit(full_mahalanobis(x, p, j), o, root(x)),
    "spherical": lambda x, p, j, c, o: spherical(x, p, j, o),
    "stablemax": lambda x, p, j, c, o: stablemax(x, p, j),
    "normface": lambda x, p, j, c, o: o.get("scale", 20.0) * cosine(x, p["weight"][j]),
    "cosface": lambda x, p, j, c, o: (
        o.get("scale", 64.0) * (cosine(x, p["weight"][j]) - (o.get("margin", 0.35) if j == c else 0.0))
    ),
    "arcface": lambda x, p, j, c, o: (
        o.get("scale", 64.0) * (arcface(x, p["weight"][j], o) if j == c else cosine(x, p["weight"][j]))
    ),
    "large_margin": lambda x, p, j, c, o: (
        large_margin(x, p["weight"][j], o) if j == c else dot(x, p["weight"][j])
    ),
    "isomax_plus": lambda x, p, j, c, o: -o.get("entropic_scale", 10.0) * isomax(x, p, j),
    "dismax": lambda x, p, j, c, o: o.get("entropic_scale", 10.0) * dismax(x, p, j),
    "supcon": lambda x, p, j, c, o: biased(direction([entry.detach() for entry in x]), p, j),
    "infonce": lambda x, p, j, c, o: biased(direction([entry.detach() for entry in x]), p, j),
    "contrastive": lambda x, p, j, c, o: biased([entry.detach() for entry in x], p, j),
    "center": lambda x, p, j, c, o: biased(x, p, j),
    "contrastive_authors": lambda x, p, j, c, o: torch.zeros((), dtype=x[0].dtype),  # all of it is in EXTRAS
    "spherical_authors": lambda x, p, j, c, o: spherical_of_logs(x, p, j, o),
}  # fmt: skip


def logs(x: Vector, p: Parameters, o: Options) -> list[Tensor]:
    """Log-probabilities of the harmonic head, as the authors' code has them: from shares of powers of distances."""
    n = o.get("exponent", root(x)) / 2
    shares = [(distance(x, row) ** 2 + o.get("softening", 0.0)) ** -n for row in p["weight"]]
    return [torch.log(share / sum(shares)) for share in shares]


def spherical_of_logs(x: Vector, p: Parameters, j: int, o: Options) -> Tensor:
    return torch.log(direction(logs(x, p, o))[j] ** 2 + o.get("epsilon", 1e-4))


def supcon(x: Sequence[Vector], y: Sequence[int], o: Options) -> Tensor:
    losses = []
    for i in range(len(x)):
        positives = [p for p in range(len(x)) if p != i and y[p] == y[i]]
        if not positives:
            continue
        score = {a: torch.exp(cosine(x[i], x[a]) / o.get("temperature", 0.1)) for a in range(len(x)) if a != i}
        losses.append(-sum(torch.log(score[p] / sum(score.values())) for p in positives) / len(positives))
    return sum(losses) / len(losses)


def infonce(x: Sequence[Vector], y: Sequence[int], o: Options) -> Tensor:
    losses = []
    for i in range(len(x)):
        score = [torch.exp(cosine(x[i], x[a]) / o.get("temperature", 0.1)) for a in range(len(x))]
        negatives = sum(score[a] for a in range(len(x)) if y[a] != y[i])
        losses += [-torch.log(score[p] / (score[p] + negatives)) for p in range(len(x)) if p != i and y[p] == y[i]]
    return sum(losses) / len(losses)


def contrastive(x: Sequence[Vector], y: Sequence[int], o: Options) -> Tensor:
    losses = []
    for i in range(len(x)):
        for a in range(i):
            d = distance(x[i], x[a])
            short = o.get("margin", 1.0) - d
            losses.append(0.5 * d * d if y[i] == y[a] else 0.5 * short * short if short > 0 else 0.0 * d)
    return sum(losses) / len(losses)


def contrastive_of_logs(x: Sequence[Vector], y: Sequence[int], p: Parameters, o: Options) -> Tensor:
    vectors, rows = [logs(row, p, o) for row in x], range(len(x))
    pull = push = torch.zeros((), dtype=x[0].dtype)
    for i, a in ((i, a) for i in rows for a in rows if i != a):
        d = distance(vectors[i], vectors[a])
        short = o.get("margin", 1.0) - d
        pull = pull + d * d if y[i] == y[a] else pull
        push = push + short * short if y[i] != y[a] and short > 0 else push
    alike = sum(y[i] == y[a] for i in rows for a in rows if i != a)
    # loss_by_formula adds the cross-entropy of logits of 0.
    return pull / alike + push / (len(x) ** 2 - alike) - math.log(len(p["weight"]))


def center(x: Sequence[Vector], y: Sequence[int], p: Parameters, o: Options) -> Tensor:
    pulls = [0.5 * distance(row, p["centers"][c]) ** 2 for row, c in zip(x, y, strict=True)]
    return o.get("pull", 0.003) * sum(pulls) / len(pulls)


EXTRAS: dict[str, Callable[[Sequence[Vector], Sequence[int], Parameters, Options], Tensor]] = {
    "supcon": lambda x, y, p, o: supcon(x, y, o),
    "infonce": lambda x, y, p, o: infonce(x, y, o),
    "contrastive": lambda x, y, p, o: contrastive(x, y, o),
    "center": center,
    "contrastive_authors": contrastive_of_logs,
}


def loss_by_formula(name: str, x_BD: Tensor, target_B: Tensor, p: Parameters, o: Options) -> Tensor:
    """Mean cross-entropy of the training logits, and what is added to it."""
    x, y = list(x_BD), target_B.tolist()
    losses = []
    for row, c in zip(x, y, strict=True):
        z = [LOGITS[name](row, p, j, c, o) for j in range(len(p["weight"]))]
        losses.append(torch.log(sum(torch.exp(z_j - z[c]) for z_j in z)))
    loss = sum(losses) / len(losses)
    return loss + EXTRAS[name](x, y, p, o) if name in EXTRAS else loss
