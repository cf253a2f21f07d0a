"""When a curve rises for good: exactly as long, strictly above, and honest about runs that never do."""

import numpy as np
import pytest

from harmax.analysis import grokking_epoch, grokking_epochs, grokking_gap, grokking_gaps


def step(at: int, epochs: int = 100) -> np.ndarray:
    """Return an accuracy that is 0.5 before an epoch and 1 from it on."""
    return np.where(np.arange(epochs) >= at, 1.0, 0.5)


@pytest.mark.parametrize(("at", "expected"), [(0, 0), (12, 12), (80, 80), (81, None), (200, None)])
def test_a_step_is_found_where_twenty_epochs_follow(at: int, expected: int | None) -> None:
    assert grokking_epoch(step(at)) == expected


def test_a_relapse_starts_the_count_again() -> None:
    accuracy = step(10)
    accuracy[29] = 0.5
    assert grokking_epoch(accuracy) == 30
    accuracy[29], accuracy[30] = 1.0, 0.5
    assert grokking_epoch(accuracy) == 10


def test_the_threshold_must_be_passed() -> None:
    assert grokking_epoch(np.full(30, 0.9)) is None
    assert grokking_epoch(np.full(30, np.nextafter(0.9, 1))) == 0
    assert grokking_epoch(np.full(30, 0.9), threshold=0.8) == 0
    # As stored, 0.9 is a float32, which is a little less than it.
    assert grokking_epoch(np.full(30, 0.9, dtype=np.float32)) is None


def test_epochs_without_a_number_are_not_above() -> None:
    accuracy = step(5)
    accuracy[40:] = np.nan
    assert grokking_epoch(accuracy) == 5
    accuracy[15:] = np.nan
    assert grokking_epoch(accuracy) is None


def test_many_runs_agree_with_a_plain_search() -> None:
    accuracy = np.random.default_rng(0).random((50, 60))
    for window in (1, 2, 5, 60, 61):
        expected = [
            next((e for e in range(60 - window + 1) if (row[e : e + window] > 0.4).all()), np.inf) for row in accuracy
        ]
        np.testing.assert_array_equal(grokking_epochs(accuracy, 0.4, window), expected)


def test_gap_counts_from_train_to_test() -> None:
    assert grokking_gap(step(10), step(70)) == 60
    assert grokking_gap(step(10), step(8)) == -2
    assert grokking_gap(step(10), step(99)) == np.inf
    assert grokking_gap(step(99), step(99)) == np.inf
    assert np.isnan(grokking_gap(step(99), step(10)))
    assert grokking_gap(step(10), step(97), window=3) == 87
    train, test = np.stack([step(10), step(20), step(99)]), np.stack([step(15), step(99), step(5)])
    np.testing.assert_array_equal(grokking_gaps(train, test), [5, np.inf, np.nan])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: grokking_epoch(np.zeros((2, 30))), r"`accuracy` must have shape \(epochs,\).*use grokking_epochs"),
        (lambda: grokking_epoch([]), r"got \(0,\)"),
        (lambda: grokking_epochs(np.zeros(30)), r"`accuracy` must have shape \(runs, epochs\).*use grokking_epoch "),
        (lambda: grokking_epochs(np.zeros((0, 30))), r"got \(0, 30\)"),
        (lambda: grokking_epoch(np.zeros(30), window=0), "`window` must be"),
        (lambda: grokking_gap(np.zeros((2, 30)), np.zeros((2, 30))), "use grokking_gaps"),
        (lambda: grokking_gaps(np.zeros((2, 30)), np.zeros((3, 30))), r"same shape, got \(2, 30\) and \(3, 30\)"),
    ],
)
def test_bad_input_is_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
