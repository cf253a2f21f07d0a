"""Probes: they read what is there and nothing else, alone as in a stack, and the verdicts say what was compared."""

from collections.abc import Mapping
from dataclasses import replace
from zlib import crc32

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from harmax.data.folder import find_data
from harmax.data.glue import Sentences, load_glue
from harmax.data.text import load_encoding
from harmax.hf import HarmonicGPT2Config, HarmonicGPT2LMHeadModel
from harmax_lab.language import probing
from harmax_lab.language.probing import (
    READOUTS,
    SCORES,
    ProbeTraining,
    made_up_sentences,
    measure_probes,
    read_sentences,
    scores,
    train_probes,
)
from threads import one_thread  # noqa: F401  (sums in another order have other bits)

SIZES = dict(vocab_size=4096, n_positions=48, n_embd=48, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=None)
QUICK = ProbeTraining(epochs=12, batch=16, learning_rate=1e-2)
LAYERS = (0, 2)


class Letters:
    """A token a letter."""

    def encode(self, text: str, /) -> list[int]:
        return [ord(letter) % 128 for letter in text]


class Words:
    """A token a word, so that an adjective is one vector."""

    def encode(self, text: str, /) -> list[int]:
        return [crc32(word.encode()) % 4096 for word in text.split()]


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**SIZES, initializer_range=0.3))


def both(train: int, dev: int) -> dict[str, tuple[Sentences, Sentences]]:
    return {"made_up": (made_up_sentences(train, 0), made_up_sentences(dev, 1))}


def one_by_one(model: GPT2LMHeadModel, texts: tuple[str, ...], layer: int) -> Tensor:
    model.eval()
    found = []
    for text in texts:
        tokens = torch.tensor([Letters().encode(text)[: SIZES["n_positions"]]])
        with torch.no_grad():
            stream = model(tokens, output_hidden_states=True).hidden_states[layer][0]
        found.append(torch.stack([stream[-1], stream.mean(0)]))
    return torch.stack(found, 1)


def test_features_are_those_of_a_plain_loop_over_sentences(
    model: GPT2LMHeadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = (*made_up_sentences(20).sentences, "a", "It is longer than the context of this model, and it goes on.")
    monkeypatch.setattr(probing, "TOKENS_AT_ONCE", 100)  # several batches, each padded
    model.train()  # with dropout, which must not show
    found = read_sentences(model, texts, Letters(), layers=(2, 0), device="cpu")
    assert model.training
    assert found.shape == (2, len(READOUTS), len(texts), 48)
    for place, layer in enumerate((2, 0)):
        torch.testing.assert_close(found[place], one_by_one(model, texts, layer), rtol=1e-4, atol=1e-5)


def test_what_stands_beside_a_sentence_changes_nothing(model: GPT2LMHeadModel) -> None:
    short = ("Short.", "Also short.")
    alone = read_sentences(model, short, Letters(), layers=LAYERS, device="cpu")
    among = read_sentences(
        model, (*short, "A much longer sentence beside them."), Letters(), layers=LAYERS, device="cpu"
    )
    torch.testing.assert_close(among[:, :, :2], alone, rtol=1e-4, atol=1e-5)


def test_a_harmonic_model_is_read_like_any_other() -> None:
    torch.manual_seed(0)
    harmonic = HarmonicGPT2LMHeadModel(HarmonicGPT2Config(**SIZES))
    found = measure_probes(
        harmonic, both(60, 30), Words(), layers=LAYERS, seeds=[3], device="cpu", training=ProbeTraining(epochs=2)
    )
    assert found["probes/made_up/f1"].shape == (1, 2, 2)


def test_a_rule_in_the_words_is_read_and_one_in_nothing_is_not(model: GPT2LMHeadModel) -> None:
    sentences = both(600, 300)
    generator = np.random.default_rng(0)
    blind = tuple(Sentences(side.sentences, generator.permutation(side.labels)) for side in sentences["made_up"])
    found = measure_probes(
        model,
        {**sentences, "blind": (blind[0], blind[1])},
        Words(),
        layers=(0,),
        seeds=range(2),
        device="cpu",
        training=QUICK,
    )
    mean = READOUTS.index("mean")
    assert found["probes/made_up/f1"][..., mean].min() > 0.95
    # 300 sentences at even odds: 0.1 is more than three deviations of an accuracy.
    assert np.abs(found["probes/blind/accuracy"] - 0.5).max() < 0.1
    assert found["probes/blind/macro_f1"].max() < 0.6
    # Every sentence ends in one of few words, which say nothing of the adjective.
    last = READOUTS.index("last")
    assert np.abs(found["probes/made_up/accuracy"][..., last] - 0.5).max() < 0.15


def test_arrays_are_those_that_are_documented(model: GPT2LMHeadModel) -> None:
    told: list[tuple[float, str]] = []
    sentences = both(80, 30)
    found = measure_probes(
        model,
        sentences,
        Words(),
        layers=LAYERS,
        seeds=[5, 9, 2],
        device="cpu",
        training=ProbeTraining(epochs=3),
        most_sentences=50,
        progress=lambda fraction, message="": told.append((fraction, message)),
    )
    shapes = {key.removeprefix("probes/made_up/"): (array.shape, array.dtype.name) for key, array in found.items()}
    assert shapes == {
        **dict.fromkeys(SCORES, ((3, 2, 2), "float32")),
        "majority": ((3,), "float32"),
        "said": ((3, 2, 2, 30), "uint8"),
        "labels": ((30,), "uint8"),
        "epoch": ((3, 2, 2), "int16"),
        "layers": ((2,), "int16"),
        "seeds": ((3,), "int64"),
        "sentences": ((2,), "int64"),
    }
    assert found["probes/made_up/sentences"].tolist() == [50, 30]
    assert found["probes/made_up/seeds"].tolist() == [5, 9, 2]
    assert set(np.unique(found["probes/made_up/epoch"])) <= {1, 2, 3}
    labels = sentences["made_up"][1].labels
    for score, again in scores(found["probes/made_up/said"], labels).items():
        np.testing.assert_allclose(found[f"probes/made_up/{score}"], again, rtol=1e-6)
    fractions = [fraction for fraction, _ in told]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1
    assert "made_up" in told[0][1]


def test_labels_of_the_dev_side_are_looked_at_only_in_the_end(model: GPT2LMHeadModel) -> None:
    (train, dev), options = both(60, 30)["made_up"], {"layers": (0,), "seeds": [0], "training": QUICK}
    turned = Sentences(dev.sentences, 1 - dev.labels)
    with torch.no_grad():  # as a caller that only measures may have it
        one, two = (
            measure_probes(model, {"x": (train, side)}, Words(), device="cpu", **options) for side in (dev, turned)
        )
    assert np.array_equal(one["probes/x/said"], two["probes/x/said"])
    np.testing.assert_allclose(one["probes/x/accuracy"], 1 - two["probes/x/accuracy"], atol=1e-6)


def test_the_majority_is_that_of_the_training_side(model: GPT2LMHeadModel) -> None:
    train, dev = made_up_sentences(40, 0), made_up_sentences(20, 1)
    rare = np.zeros(40, dtype=np.int64)
    rare[:9] = 1
    found = measure_probes(
        model,
        {"rare": (Sentences(train.sentences, rare), dev)},
        Words(),
        layers=(0,),
        seeds=[0],
        device="cpu",
        training=ProbeTraining(epochs=1),
    )
    np.testing.assert_allclose(found["probes/rare/majority"], [0, 1 / 3, 0.5], rtol=1e-6)  # always 0, half are 0


def planted(kinds: int = 3, count: int = 400, width: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(kinds, count, width, generator=generator)
    return features, (features[0, :, 0] + 0.3 * features[0, :, 1] > 0).long()


def test_exclusive_or_is_read_by_the_hidden_layer_alone() -> None:
    features, _ = planted(1, 600, 4)
    label = ((features[0, :, 0] > 0) ^ (features[0, :, 1] > 0)).long()
    probe = train_probes(features[:, :400], label[:400], seeds=[0, 1], training=replace(QUICK, epochs=30))
    right = (probe.classify(features[:, 400:]) == label[400:]).double().mean(-1)
    assert right.min() > 0.9
    line = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(line.parameters(), lr=1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(line(features[0, :400]), label[:400]).backward()
        optimizer.step()
    assert (line(features[0, 400:]).argmax(-1) == label[400:]).double().mean() < 0.7


def test_a_seed_gives_the_same_bits_alone_and_in_a_stack() -> None:
    features, labels = planted()
    stack = train_probes(features, labels, seeds=[4, 7, 1], training=QUICK)
    again = train_probes(features, labels, seeds=[4, 7, 1], training=QUICK)
    alone = train_probes(features[1:2], labels, seeds=[7], training=QUICK)
    for one, two, three in zip(stack.weights, again.weights, alone.weights, strict=True):
        assert torch.equal(one, two)
        torch.testing.assert_close(one[1, 1], three[0, 0], rtol=1e-5, atol=1e-6)
    assert torch.equal(stack.epoch_PS[1, 1], alone.epoch_PS[0, 0])
    assert torch.equal(stack.classify(features)[1, 1], alone.classify(features[1:2])[0, 0])
    assert not torch.equal(stack.weights[0][:, 0], stack.weights[0][:, 1])


def test_training_leaves_the_callers_random_numbers_alone() -> None:
    features, labels = planted()
    before = torch.get_rng_state()
    train_probes(features, labels, seeds=[0], training=ProbeTraining(epochs=1))
    assert torch.equal(torch.get_rng_state(), before)


def test_neither_scale_nor_place_of_features_matters_and_a_constant_is_nothing() -> None:
    features, labels = planted()
    moved = features * torch.logspace(-3, 3, 12) + torch.arange(12.0)
    flat = torch.cat([features, torch.full((3, 400, 1), 7.3)], -1)
    for other in (moved, flat):
        found = train_probes(other, labels, seeds=[0], training=QUICK).classify(other)
        assert (found[0] == labels).double().mean() > 0.95


def test_training_stops_at_the_best_held_out_epoch() -> None:
    """Noise can only be learned by heart: later epochs fit it better and the held-out tenth worse."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(1, 200, 64, generator=generator)
    labels = torch.randint(2, (200,), generator=generator)
    late = replace(QUICK, epochs=40)
    early = train_probes(features, labels, seeds=range(4), training=late)
    assert early.epoch_PS.max() < 20
    fitted = (early.classify(features) == labels).double().mean()
    assert fitted < 0.99


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_those_of_another_library(seed: int) -> None:
    generator = np.random.default_rng(seed)
    labels = (generator.random(200) < 0.7).astype(int)
    said = (generator.random((2, 3, 200)) < generator.random((2, 3, 1))).astype(np.uint8)
    found = scores(said, labels)
    for at in np.ndindex(2, 3):
        assert found["f1"][at] == pytest.approx(f1_score(labels, said[at]))
        assert found["macro_f1"][at] == pytest.approx(f1_score(labels, said[at], average="macro"))
        assert found["accuracy"][at] == pytest.approx(accuracy_score(labels, said[at]))
    counts = generator.integers(4, size=(2, 200))
    drawn = scores(said, labels, counts)
    for draw in range(2):
        repeated = scores(np.repeat(said, counts[draw], -1), np.repeat(labels, counts[draw]))
        for score in SCORES:
            np.testing.assert_allclose(drawn[score][..., draw], repeated[score])


def test_nothing_over_nothing_is_zero() -> None:
    found = scores(np.zeros(4), np.zeros(4))
    assert (found["f1"], found["macro_f1"], found["accuracy"]) == (0, 0.5, 1)


def test_made_up_sentences_are_even_and_depend_on_the_seed_alone() -> None:
    one, two = made_up_sentences(101, 3), made_up_sentences(101, 3)
    assert one.sentences == two.sentences
    assert one.labels.tolist() == two.labels.tolist()
    assert int(one.labels.sum()) == 50
    assert made_up_sentences(101, 4).sentences != one.sentences


FEW = made_up_sentences(20)
EMPTY = Sentences((), np.zeros(0, dtype=np.int64))
ONES = Sentences(FEW.sentences, np.ones(20, dtype=np.int64))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sentences": {}}, "`sentences` must hold a data set, got none"),
        ({"sentences": {"x": (EMPTY, FEW)}}, "train side of `x` must hold 10 or more sentences .* got 0"),
        ({"sentences": {"x": (FEW, EMPTY)}}, "dev side of `x` must hold 1 or more sentences .* got 0"),
        ({"sentences": {"x": (ONES, FEW)}}, r"train side of `x` must hold sentences of both labels.* got \[1\]"),
        ({"sentences": {"x": (FEW, ONES)}}, r"dev side of `x` must hold sentences of both labels.* got \[1\]"),
        ({"sentences": {"x": (FEW, Sentences(("", "b"), np.array([0, 1])))}}, "a sentence must have a token, got ''"),
        ({"layers": (0, 3)}, r"`layers` must lie between 0 and 2, .*got \[0, 3\]"),
        ({"layers": (-1,)}, "`layers` must lie between 0 and 2"),
        ({"layers": ()}, "`layers` must be different numbers, at least one"),
        ({"seeds": (1, 1)}, "`seeds` must be different numbers"),
        ({"most_sentences": 5}, "`most_sentences` must be at least 10, got 5"),
    ],
)
def test_bad_input_is_refused(model: GPT2LMHeadModel, changes: Mapping[str, object], message: str) -> None:
    options = {"layers": (0,), "seeds": (0,), "training": ProbeTraining(epochs=1), **changes}
    sentences = options.pop("sentences", {"x": (FEW, FEW)})
    with pytest.raises(ValueError, match=message):
        measure_probes(model, sentences, Words(), device="cpu", **options)


def test_an_encoding_of_another_model_is_refused(model: GPT2LMHeadModel) -> None:
    class Foreign:
        def encode(self, text: str, /) -> list[int]:
            return [4096]

    with pytest.raises(ValueError, match="`encoding` must give tokens below 4096, the model's, got 4096"):
        read_sentences(model, ("a",), Foreign(), layers=(0,), device="cpu")


def test_bad_training_is_refused() -> None:
    features, labels = planted()
    with pytest.raises(ValueError, match="must be positive"):
        ProbeTraining(epochs=0)
    with pytest.raises(ValueError, match="finite, got infinity or NaN"):
        train_probes(features / 0, labels, seeds=[0])
    with pytest.raises(ValueError, match="at least 10 sentences"):
        train_probes(features[:, :9], labels[:9], seeds=[0])


@pytest.mark.skipif(find_data() is None, reason="no data folder")
def test_real_sentences_run_through() -> None:
    folder = find_data()
    assert folder is not None
    torch.manual_seed(0)
    settings = {**SIZES, "vocab_size": 50257, "n_positions": 64, "n_layer": 1}
    gpt2 = GPT2LMHeadModel(GPT2Config(**settings))
    sides = {split: load_glue("sst2", split) for split in ("train", "dev")}
    some = [Sentences(side.sentences[:200], side.labels[:200]) for side in sides.values()]
    found = measure_probes(
        gpt2,
        {"sst2": (some[0], some[1])},
        load_encoding(folder / "gpt2_bpe"),
        layers=(0, 1),
        seeds=range(3),
        device="cpu",
        training=ProbeTraining(epochs=5),
    )
    assert found["probes/sst2/said"].shape == (3, 2, 2, 200)
    always = f1_score(some[1].labels, np.ones(200))
    assert found["probes/sst2/majority"][0] == pytest.approx(always, rel=1e-6)
    # 200 phrases hold some sentiment, a random embedding keeps it: neither blind chance nor a trained model.
    assert 0.4 < found["probes/sst2/accuracy"].mean() < 0.75
