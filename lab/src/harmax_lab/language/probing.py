"""What a language model's residual stream tells of a sentence: probes of SST-2 and CoLA, or of any labeled sentences.

The paper does not say which vector stands for a sentence, nor which F1 it means, so two read-outs are measured, the
last token's vector and the mean over the tokens, and two F1s, that of class 1 and the mean of both classes'.
In what enters the first block a token knows its own word and place alone: there the last token is hardly a sentence.

Probes that share a seed share their start, their held-out tenth and the order of their batches, whatever features they
look at, so that differences between features, layers or models are paired. No probe's numbers depend on the others.
"""

# N sentences, B of a batch, T tokens of the longest one, D features, L layers, R read-outs, P = L R kinds of features,
# S seeds, H hidden units

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harmax.data.glue import Sentences
from harmax.data.words import Encoding
from harmax.inspect.embedding import silent
from harmax_lab.ensemble.rows import descend, keep_where, orders, streams
from harmax_lab.kit.experiment import Progress
from harmax_lab.language.pretraining import part

if TYPE_CHECKING:
    from transformers import PreTrainedModel

READOUTS = ("last", "mean")
"""What stands for a sentence: its last token's vector, or the mean over its tokens'."""
TOKENS_AT_ONCE, EVALUATED_AT_ONCE = 16_384, 1024  # tokens, sentences
SCORES = ("f1", "macro_f1", "accuracy")
LEAST = 10  # sentences; with fewer there is no tenth to hold out

SideBySide = tuple[Sentences, Sentences]


@dataclass(frozen=True, kw_only=True)
class ProbeTraining:
    """How a probe is trained; the paper says no more than one hidden layer of 16."""

    hidden: int = 16
    epochs: int = 20
    """Of which the one with the least loss on the held-out tenth counts."""
    batch: int = 128
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        if min(self.hidden, self.epochs, self.batch) < 1 or not self.learning_rate > 0:
            raise ValueError(
                f"`hidden`, `epochs`, `batch` and `learning_rate` must be positive, got {self}; raise them."
            )


USUAL = ProbeTraining()


def measure_probes(
    model: "PreTrainedModel",
    sentences: Mapping[str, SideBySide],
    encoding: Encoding,
    *,
    layers: Sequence[int],
    seeds: Sequence[int],
    device: str,
    training: ProbeTraining = USUAL,
    most_sentences: int | None = None,
    progress: Progress = silent,
) -> dict[str, np.ndarray]:
    """Train probes on the residual stream of a model, and score them on sentences that they have not seen.

    Args:
        model: a causal language model of transformers.
        sentences: by name, the sentences to train on and those to score on (`load_glue`'s "train" and "dev").
        encoding: the model's.
        layers: which residual streams, hidden_states[k]: 0 enters the first block, the last has passed the final norm.
        seeds: one probe for each, layer, read-out and data set. With the same seeds two models are comparable.
        device: where model and probes compute; on cuda the model runs in bfloat16.
        training: of the probes.
        most_sentences: to train on, drawn evenly once if there are more; None: all.
        progress: is told how far it is.

    Returns:
        For each data set, below `probes/NAME/`: f1, macro_f1 and accuracy, (S, L, R) float32, on the dev side, in the
        order of `READOUTS`; majority, (3,) float32, the same three of always giving the more frequent training label;
        said, (S, L, R, N) uint8, the answers, and labels, (N,) uint8, both of the dev side; epoch, (S, L, R) int16,
        after which each probe was taken; layers, (L,) int16; seeds, (S,) int64; sentences, (2,) int64, how many to
        train on and to score on.
    """
    _check_choice("layers", layers)
    _check_choice("seeds", seeds)
    deepest = model.config.num_hidden_layers
    if min(layers) < 0 or max(layers) > deepest:
        raise ValueError(
            f"`layers` must lie between 0 and {deepest}, the model's blocks, got {list(layers)}; lower it."
        )
    if not sentences:
        raise ValueError("`sentences` must hold a data set, got none; pass its two sides by name.")
    for name, (train, dev) in sentences.items():
        _check_side(f"the train side of `{name}`", train)
        _check_side(f"the dev side of `{name}`", dev, least=1)
    found: dict[str, np.ndarray] = {}
    for done, (name, (whole, dev)) in enumerate(sentences.items()):
        tell = part(progress, done / len(sentences), (done + 1) / len(sentences), name)
        train = _at_most(name, whole, most_sentences)
        tell(0.0, "read sentences")
        features_LRND, dev_LRND = (
            read_sentences(model, side.sentences, encoding, layers=layers, device=device) for side in (train, dev)
        )
        tell(0.5, "train probes")
        labels_N = torch.from_numpy(train.labels.astype(np.int64)).to(device)
        probes = train_probes(features_LRND.flatten(0, 1), labels_N, seeds=seeds, training=training)
        constant_N = np.full(len(dev.labels), int(train.labels.mean() >= 0.5))
        arrays = {
            **_answers(probes, dev_LRND, dev.labels),
            "majority": np.array(list(scores(constant_N, dev.labels).values()), dtype=np.float32),
            "sentences": np.array([len(train.labels), len(dev.labels)], dtype=np.int64),
            "layers": np.array(layers, dtype=np.int16),
            "seeds": np.array(seeds, dtype=np.int64),
        }
        found |= {f"probes/{name}/{key}": array for key, array in arrays.items()}
        tell(1.0, "done")
    return found


def _answers(probes: "Probes", features_LRND: Tensor, labels: np.ndarray) -> dict[str, np.ndarray]:
    def unstacked(found_PS: Tensor, kind: torch.dtype) -> np.ndarray:
        found_SP = found_PS.transpose(0, 1)
        return np.asarray(found_SP.unflatten(1, features_LRND.shape[:2]).to(kind).cpu().numpy())

    said_SLRN = unstacked(probes.classify(features_LRND.flatten(0, 1)), torch.uint8)
    return {
        **{score: values.astype(np.float32) for score, values in scores(said_SLRN, labels).items()},
        "said": said_SLRN,
        "labels": labels.astype(np.uint8),
        "epoch": unstacked(probes.epoch_PS, torch.int16),
    }


@torch.no_grad()
def read_sentences(
    model: "PreTrainedModel", sentences: Sequence[str], encoding: Encoding, *, layers: Sequence[int], device: str
) -> Tensor:
    """Return what stands for each sentence in the residual streams, (L, R, N, D) float32 on the device.

    Sentences run in batches of similar length, padded behind, where a causal model cannot see it. Those longer than
    the model's context are cut at its end.

    Args:
        model, encoding, layers, device: as for `measure_probes`.
        sentences: N of them, none without a token.
    """
    context = model.config.max_position_embeddings
    tokens = [encoding.encode(sentence)[:context] for sentence in sentences]
    lengths = np.array([len(one) for one in tokens])
    if not lengths.all():
        raise ValueError(f"a sentence must have a token, got {sentences[int(lengths.argmin())]!r}; leave it out.")
    largest, known = max(map(max, tokens)), model.config.vocab_size
    if largest >= known:
        raise ValueError(
            f"`encoding` must give tokens below {known}, the model's, got {largest}; take the model's own."
        )
    found_LRND = torch.empty(len(layers), len(READOUTS), len(tokens), model.config.hidden_size, device=device)
    kind, was_training = torch.device(device).type, model.training
    nn.Module.to(model, device)  # transformers' own is typed as taking nothing
    body = model.eval().base_model  # the head, most of a small model's work, is not needed
    try:
        for batch in _batches(lengths):
            rows = [torch.tensor(tokens[place]) for place in batch]
            tokens_BT = nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)
            length_B, place_B = (torch.from_numpy(one).to(device) for one in (lengths[batch], batch))
            with torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda"):
                streams = body(tokens_BT, output_hidden_states=True, use_cache=False).hidden_states
            for layer, out_RND in zip(layers, found_LRND, strict=True):
                out_RND[:, place_B] = _read_out(streams[layer].float(), length_B)
    finally:
        model.train(was_training)
    return found_LRND


def _read_out(stream_BTD: Tensor, length_B: Tensor) -> Tensor:
    rows_B = torch.arange(len(length_B), device=length_B.device)
    real_BT = torch.arange(stream_BTD.shape[1], device=length_B.device) < length_B[:, None]
    # Filled and not multiplied: what padding holds might be no number.
    sum_BD = stream_BTD.masked_fill(~real_BT[..., None], 0.0).sum(1)
    return torch.stack([stream_BTD[rows_B, length_B - 1], sum_BD / length_B[:, None]])


def _batches(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Yield places of sentences of similar length, longest first, so that memory is asked for at its most at once."""
    order, start = np.argsort(-lengths, kind="stable"), 0
    while start < len(order):
        size = max(1, TOKENS_AT_ONCE // int(lengths[order[start]]))
        yield order[start : start + size]
        start += size


def _at_most(name: str, side: Sentences, most: int | None) -> Sentences:
    if most is None or most >= len(side.sentences):
        return side
    if most < LEAST:
        raise ValueError(f"`most_sentences` must be at least {LEAST}, got {most}; a tenth of them is held out.")
    # Drawn, because CoLA's files are sorted by source; always the same, because arms are compared.
    places = np.sort(np.random.default_rng(0).choice(len(side.sentences), most, replace=False))
    some = Sentences(tuple(side.sentences[place] for place in places), side.labels[places])
    _check_side(f"`most_sentences` = {most} of the train side of `{name}`", some)
    return some


def _check_choice(name: str, values: Sequence[int]) -> None:
    if not len(values) or len(set(values)) != len(values):
        raise ValueError(f"`{name}` must be different numbers, at least one, got {list(values)}; name each once.")


def _check_side(what: str, side: Sentences, least: int = LEAST) -> None:
    count, labels = len(side.sentences), sorted(set(side.labels.tolist()))
    if count < least or len(side.labels) != count:
        raise ValueError(
            f"{what} must hold {least} or more sentences and a label for each, got {count} and {len(side.labels)} "
            "labels; give it more."
        )
    if labels != [0, 1]:
        raise ValueError(f"{what} must hold sentences of both labels, 0 and 1, got {labels}; give it others.")


class Probes(NamedTuple):
    """Trained probes, (P, S) of them, and what they expect of features."""

    weights: tuple[Tensor, ...]
    """Of the first layer (P, S, D, H), its bias (P, S, 1, H), of the second (P, S, H, 2), its bias (P, S, 1, 2)."""
    mean_P1D: Tensor
    scale_P1D: Tensor
    epoch_PS: Tensor
    """Epochs after which each was taken, from 1."""

    @torch.no_grad()
    def classify(self, features_PND: Tensor) -> Tensor:
        """Say 0 or 1 for each sentence, (P, S, N) uint8."""
        seeds, count = self.epoch_PS.shape[1], features_PND.shape[1]
        ready_PND = (features_PND - self.mean_P1D) / self.scale_P1D
        index_SN = torch.arange(count, device=features_PND.device).expand(seeds, -1)
        parts = [_logits(self.weights, ready_PND, part).argmax(-1) for part in index_SN.split(EVALUATED_AT_ONCE, 1)]
        return torch.cat(parts, -1).to(torch.uint8)


@torch.enable_grad()  # whoever measures a model may have switched gradients off
def train_probes(
    features_PND: Tensor, labels_N: Tensor, *, seeds: Sequence[int], training: ProbeTraining = USUAL
) -> Probes:
    """Train a probe for each kind of features and seed, all in one stack, by Adam on the cross-entropy.

    Features are standardized by all N sentences. A tenth of them is held out: after every epoch its loss decides
    whether a probe is the best so far. Nothing waits for the device between two batches.

    Args:
        features_PND: on the device to train on, float32.
        labels_N: 0 or 1, int64, on the same device.
        seeds: each decides initial weights, batch order and the held-out tenth, alike on every device.
        training: epochs, batches and learning rate.
    """
    kinds, count, width = features_PND.shape
    if count < LEAST:
        raise ValueError(
            f"`features` must be of at least {LEAST} sentences, so that a tenth can be held out, got {count}."
        )
    if not bool(features_PND.isfinite().all()):
        raise ValueError("`features` must be finite, got infinity or NaN; has the model diverged?")
    device, draws = features_PND.device, streams(seeds)
    mean_P1D, scale_P1D = _standard(features_PND)
    ready_PND = (features_PND - mean_P1D) / scale_P1D
    held_SN, kept_SN = (part.to(device) for part in orders(count, draws).tensor_split([count // 10], 1))
    weights = tuple(
        torch.stack(starts).to(device).repeat(kinds, 1, 1, 1).requires_grad_()
        for starts in zip(*(_start(stream, width, training.hidden) for stream in draws), strict=True)
    )
    chosen = tuple(weight.detach().clone() for weight in weights)
    least_PS = torch.full((kinds, len(seeds)), torch.inf, device=device)
    epoch_PS = torch.zeros(kinds, len(seeds), dtype=torch.int64, device=device)
    optimizer = torch.optim.Adam(weights, lr=training.learning_rate)

    def losses(index_SB: Tensor) -> Tensor:
        return _losses(weights, ready_PND, labels_N, index_SB)

    for epoch in range(training.epochs):
        index_SN = kept_SN.gather(1, orders(kept_SN.shape[1], draws).to(device))
        descend(index_SN.split(training.batch, 1), lambda index_SB: losses(index_SB).mean(-1), optimizer)
        with torch.no_grad():
            held_PS = torch.cat([losses(part) for part in held_SN.split(EVALUATED_AT_ONCE, 1)], -1).mean(-1)
            better_PS = held_PS < least_PS
            least_PS = torch.where(better_PS, held_PS, least_PS)
            epoch_PS = torch.where(better_PS, epoch + 1, epoch_PS)
            keep_where(better_PS, chosen, weights)
    return Probes(chosen, mean_P1D, scale_P1D, epoch_PS)


def _standard(features_PND: Tensor) -> tuple[Tensor, Tensor]:
    deviation_P1D, mean_P1D = torch.std_mean(features_PND, 1, correction=0, keepdim=True)
    # What varies by its rounding alone is left as it is, near 0, instead of being blown up to a feature.
    return mean_P1D, torch.where(deviation_P1D > 1e-5 * mean_P1D.abs(), deviation_P1D, 1.0)


def _start(stream: torch.Generator, width: int, hidden: int) -> list[Tensor]:
    """Draw nn.Linear's default weights and biases of the two layers."""
    shapes = ((width, width, hidden), (width, 1, hidden), (hidden, hidden, 2), (hidden, 1, 2))
    return [torch.empty(shape).uniform_(-(inputs**-0.5), inputs**-0.5, generator=stream) for inputs, *shape in shapes]


def _logits(weights: tuple[Tensor, ...], features_PND: Tensor, index_SB: Tensor) -> Tensor:
    """Return logits (P, S, B, 2) of each seed's own sentences."""
    first, first_bias, second, second_bias = (weight.flatten(0, 1) for weight in weights)
    x_PSBD = features_PND[:, index_SB]
    hidden = torch.baddbmm(first_bias, x_PSBD.flatten(0, 1), first).relu()
    return torch.baddbmm(second_bias, hidden, second).unflatten(0, x_PSBD.shape[:2])


def _losses(weights: tuple[Tensor, ...], features_PND: Tensor, labels_N: Tensor, index_SB: Tensor) -> Tensor:
    logits = _logits(weights, features_PND, index_SB)
    target_PSB = labels_N[index_SB].expand(logits.shape[:-1])
    return F.cross_entropy(logits.flatten(0, 2), target_PSB.flatten(), reduction="none").view(target_PSB.shape)


def scores(said: np.ndarray, labels: np.ndarray, counts: np.ndarray | None = None) -> dict[str, np.ndarray]:
    r"""Return how well answers fit labels: F1 of class 1, the mean F1 of both classes, and accuracy.

    .. math:: F_1 = \frac{2\,\mathrm{TP}}{2\,\mathrm{TP} + \mathrm{FP} + \mathrm{FN}}, \text{ and 0 where that is } 0/0

    Args:
        said: answers 0 or 1, (..., N).
        labels: 0 or 1, (N,).
        counts: how often each sentence counts, (K, N), for K scores each; None: once, for one score.

    Returns:
        `SCORES`, each (...) or with counts (..., K), float64.

    >>> {name: float(found) for name, found in scores(np.array([1, 1, 0, 0]), np.array([1, 0, 0, 0])).items()}
    {'f1': 0.6666666666666666, 'macro_f1': 0.7333333333333334, 'accuracy': 0.75}
    """
    weight = np.ones((1, len(labels))) if counts is None else np.asarray(counts, dtype=np.float64)
    yes, truth = np.asarray(said, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    total, positive, claimed = weight.sum(1), weight @ truth, yes @ weight.T
    right = (yes * truth) @ weight.T
    rejected = total - positive - claimed + right
    f1 = _share(2 * right, claimed + positive)
    both = (f1 + _share(2 * rejected, 2 * total - claimed - positive)) / 2
    found = dict(zip(SCORES, (f1, both, (right + rejected) / total), strict=True))
    return found if counts is not None else {name: values[..., 0] for name, values in found.items()}


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros(np.broadcast(part, whole).shape), where=whole > 0)


_FEELINGS = (
    ("dull", "poor", "weak", "bad", "sad", "wrong", "cold", "slow"),
    ("good", "great", "fine", "best", "bright", "strong", "warm", "true"),
)
_THINGS = ("film", "book", "play", "story", "song", "game", "show", "scene")
_TIMES = ("today", "again", "at last", "this year", "from the start", "in the end", "for once", "as a whole")


def made_up_sentences(count: int, seed: int = 0) -> Sentences:
    """Make up sentences whose label is whether their adjective is kind, half of them of each label.

    They stand in for SST-2 and CoLA where the data folder is missing.

    >>> made_up_sentences(2).sentences
    ('The game was weak today.', 'The song was fine today.')
    """
    generator = np.random.default_rng(seed)
    labels = generator.permutation(np.arange(count) % 2)
    things, feelings, times = generator.integers(8, size=(3, count))
    texts = (
        f"The {_THINGS[thing]} was {_FEELINGS[label][feeling]} {_TIMES[time]}."
        for label, thing, feeling, time in zip(labels, things, feelings, times, strict=True)
    )
    return Sentences(tuple(texts), labels.astype(np.int64))
