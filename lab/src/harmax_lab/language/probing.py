"""What a language model's residual stream tells of a sentence: probes of SST-2 and CoLA, or of any labeled sentences.

The paper does not say which vector stands for a sentence, nor which F1 it means, so two read-outs are measured, the
last token's vector and the mean over the tokens, and two F1s, that of class 1 and the mean of both classes'.
In what enters the first block a token knows its own word and place alone: there the last token is hardly a sentence.
"""

# N sentences, B of a batch, T tokens of the longest one, D features, L layers, R read-outs, P = L R, S seeds

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from harmax.data.glue import Sentences
from harmax.data.words import Encoding
from harmax_lab.kit.experiment import Progress
from harmax_lab.language.probe_training import LEAST, ProbeTraining, scores, train_probes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

READOUTS = ("last", "mean")
"""What stands for a sentence: its last token's vector, or the mean over its tokens'."""
TOKENS_AT_ONCE = 16_384

SideBySide = tuple[Sentences, Sentences]


def measure_probes(
    model: "PreTrainedModel",
    sentences: Mapping[str, SideBySide],
    encoding: Encoding,
    *,
    layers: Sequence[int],
    seeds: Sequence[int],
    device: str,
    training: ProbeTraining | None = None,
    most_sentences: int | None = None,
    progress: Progress | None = None,
) -> dict[str, np.ndarray]:
    """Train probes on the residual stream of a model, and say how well they do on sentences they have not seen.

    Args:
        model: a causal language model of transformers.
        sentences: by name, the sentences to train on and those to score on (`load_glue`'s "train" and "dev").
        encoding: the model's.
        layers: which residual streams, hidden_states[k]: 0 is what enters the first block, and the last one has passed
            the final norm.
        seeds: of probes; one probe for each, layer, read-out and data set. The same seeds make two models comparable
            probe by probe.
        device: where model and probes compute; on cuda the model runs in bfloat16.
        training: of the probes; None means the defaults.
        most_sentences: to train on, drawn evenly once where there are more; None: all.
        progress: told how far it is.

    Returns:
        For each data set, below `probes/NAME/`:

        - f1, macro_f1, accuracy: (S, L, R) float32, on the dev side, in the order of `READOUTS`;
        - majority: (3,) float32, the same three scores of always giving the more frequent training label;
        - said: (S, L, R, N) uint8, the answers, and labels: (N,) uint8, both of the dev side;
        - epoch: (S, L, R) int16, after which epoch each probe was taken;
        - layers: (L,) int16; seeds: (S,) int64; sentences: (2,) int64, how many to train on and to score on.
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
    for name, sides in sentences.items():
        _check_sides(name, sides)
    found: dict[str, np.ndarray] = {}
    for done, (name, (train, dev)) in enumerate(sentences.items()):

        def tell(share: float, message: str, done: int = done, name: str = name) -> None:
            if progress is not None:
                progress((done + share) / len(sentences), f"{name}: {message}")

        sides = (_at_most(name, train, most_sentences), dev)
        tell(0.0, "read sentences")
        features = [
            read_sentences(model, side.sentences, encoding, layers=layers, device=device).flatten(0, 1)
            for side in sides
        ]
        tell(0.5, "train probes")
        for key, array in _probe(sides, features, seeds, training, (len(layers), len(READOUTS))).items():
            found[f"probes/{name}/{key}"] = array
        found[f"probes/{name}/layers"] = np.array(layers, dtype=np.int16)
        found[f"probes/{name}/seeds"] = np.array(seeds, dtype=np.int64)
        tell(1.0, "done")
    return found


def _probe(
    sides: SideBySide,
    features: Sequence[Tensor],
    seeds: Sequence[int],
    training: ProbeTraining | None,
    shape_LR: tuple[int, int],
) -> dict[str, np.ndarray]:
    """Train on one side's features (P, N, D), score on the other's."""
    train, dev = sides
    labels_N = torch.from_numpy(train.labels.astype(np.int64)).to(features[0].device)
    probes = train_probes(features[0], labels_N, seeds=seeds, training=training)
    said_SPN = probes.classify(features[1]).transpose(0, 1)
    said_SLRN = said_SPN.unflatten(1, shape_LR).cpu().numpy()
    constant_N = np.full(len(dev.labels), int(train.labels.mean() >= 0.5))
    return {
        **{score: values.astype(np.float32) for score, values in scores(said_SLRN, dev.labels).items()},
        "majority": np.array(list(scores(constant_N, dev.labels).values()), dtype=np.float32),
        "said": said_SLRN,
        "labels": dev.labels.astype(np.uint8),
        "epoch": probes.epoch_PS.T.unflatten(1, shape_LR).to(torch.int16).cpu().numpy(),
        "sentences": np.array([len(train.labels), len(dev.labels)], dtype=np.int64),
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
    width = model.config.hidden_size
    found_LRND = torch.empty(len(layers), len(READOUTS), len(tokens), width, device=device)
    with _evaluating(model, device) as hidden_states:
        for batch in _batches(lengths):
            padded_BT = np.zeros((len(batch), lengths[batch].max()), dtype=np.int64)
            for row, place in zip(padded_BT, batch, strict=True):
                row[: lengths[place]] = tokens[place]
            length_B = torch.from_numpy(lengths[batch]).to(device)
            streams = hidden_states(torch.from_numpy(padded_BT).to(device))
            place_B = torch.from_numpy(batch).to(device)
            for layer, out_RND in zip(layers, found_LRND, strict=True):
                out_RND[:, place_B] = _read_out(streams[layer].float(), length_B)
    return found_LRND


def _read_out(stream_BTD: Tensor, length_B: Tensor) -> Tensor:
    rows_B = torch.arange(len(length_B), device=length_B.device)
    real_BT = torch.arange(stream_BTD.shape[1], device=length_B.device) < length_B[:, None]
    # Filled and not multiplied: what padding holds might be no number.
    sum_BD = stream_BTD.masked_fill(~real_BT[..., None], 0.0).sum(1)
    return torch.stack([stream_BTD[rows_B, length_B - 1], sum_BD / length_B[:, None]])


@contextmanager
def _evaluating(model: "PreTrainedModel", device: str) -> Iterator[Callable[[Tensor], tuple[Tensor, ...]]]:
    """Yield a function from tokens to residual streams, the model without dropout while it is used."""
    kind, was_training = torch.device(device).type, model.training
    nn.Module.to(model, device)  # transformers' own is typed as taking nothing
    body = model.eval().base_model  # the head, most of a small model's work, is not needed

    def hidden_states(tokens_BT: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda"):
            return tuple(body(tokens_BT, output_hidden_states=True, use_cache=False).hidden_states)

    try:
        yield hidden_states
    finally:
        model.train(was_training)


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
    _check_labels(f"`most_sentences` = {most} of the train side of `{name}`", some)
    return some


def _check_choice(name: str, values: Sequence[int]) -> None:
    if not len(values) or len(set(values)) != len(values):
        raise ValueError(f"`{name}` must be different numbers, at least one, got {list(values)}; name each once.")


def _check_sides(name: str, sides: SideBySide) -> None:
    for split, side, least in zip(("train", "dev"), sides, (LEAST, 1), strict=True):
        count = len(side.sentences)
        if count < least or len(side.labels) != count:
            raise ValueError(
                f"the {split} side of `{name}` must hold {least} or more sentences and a label for each, got {count} "
                f"and {len(side.labels)} labels; give it more."
            )
        _check_labels(f"the {split} side of `{name}`", side)


def _check_labels(what: str, side: Sentences) -> None:
    labels = set(np.unique(side.labels).tolist())
    if labels != {0, 1}:
        raise ValueError(f"{what} must hold sentences of both labels, 0 and 1, got {sorted(labels)}; give it others.")


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
