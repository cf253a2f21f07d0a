"""Settings follow from the pictures, unless they are given."""

from typing import Any

import pytest

from harmax.train.pictures.settings import PicturesSpec, choose_settings


def choose(spec: PicturesSpec | None = None, **facts: Any) -> Any:
    usual = {"pictures": 144, "side": 300, "pixels": 1e5, "gpu": False}
    return choose_settings(spec or PicturesSpec(), **(usual | facts))


@pytest.mark.parametrize("pictures", [2, 5, 9, 144, 1000, 100_000])
def test_a_batch_is_never_larger_than_the_training_set(pictures: int) -> None:
    spec = choose(pictures=pictures).spec
    assert 1 <= spec.micro_batch <= spec.batch <= pictures
    assert spec.batch % spec.micro_batch == 0
    assert 10 <= spec.epochs <= 100
    assert spec.warmup < spec.epochs


def test_the_side_follows_the_pictures_and_the_device() -> None:
    assert [choose(side=side).spec.image_size for side in (20, 40, 70, 3000)] == [32, 32, 64, 96]
    assert choose(side=3000, gpu=True).spec.image_size == 224
    assert choose(side=32).spec.small_stem
    assert not choose(side=300).spec.small_stem


def test_what_is_given_is_kept_and_the_rest_has_a_reason() -> None:
    given = PicturesSpec(image_size=48, batch=30, micro_batch=10, epochs=3, lr=0.5, exponent=9.0, model="tiny")
    chosen = choose(given)
    spec = chosen.spec
    assert (spec.image_size, spec.batch, spec.micro_batch, spec.epochs, spec.lr, spec.exponent, spec.model) == (
        48,
        30,
        10,
        3,
        0.5,
        9.0,
        "tiny",
    )
    assert chosen.reasons == []
    assert [line.split()[0] for line in choose().reasons] == ["image", "batch", "micro-batch", "epochs", "learning"]
    assert choose(PicturesSpec(micro_batch=12)).spec.batch == 12


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"validation": 1.0}, "`validation` must be a share between 0 and 1"),
        ({"batch": 0}, "`batch` must be at least 1, got 0"),
        ({"lr": -1.0}, "`lr` must be a positive number"),
        ({"fine_tune": 2}, "must come with `backbone`, got none"),
    ],
)
def test_bad_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PicturesSpec(**fields)


def test_a_batch_beyond_the_pictures_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`batch` must be at most the number of training pictures \(144\), got 145"):
        choose(PicturesSpec(batch=145))
