"""Errors name what is wrong, what was expected and what to do."""

import sys

import numpy as np
import pytest

from harmax.errors import EXTRAS, MissingExtraError, is_installed, needs, unknown, whole_number


def test_an_unknown_name_comes_with_the_nearest_known_ones() -> None:
    assert "did you mean 'chunked'?" in unknown("impl", "chunk", ["eager", "chunked"])
    assert "choose one of them" in unknown("impl", "xyz", ["eager", "chunked"])
    assert "got None" in unknown("impl", None, ["eager"])  # type: ignore[arg-type]  # users do pass it


def test_a_missing_extra_names_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(MissingExtraError, match=r'`safetensors` .*pip install "harmax\[run\]"'), needs("run"):
        import safetensors  # noqa: F401


def test_another_missing_module_is_not_blamed_on_the_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module") as error, needs("run"):
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401
    assert not isinstance(error.value, MissingExtraError)


def test_an_extra_counts_as_installed_when_all_of_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "run", ("json", "no_such_module"))
    assert not is_installed("run")
    monkeypatch.setitem(EXTRAS, "run", ("json",))
    assert is_installed("run")


def test_whole_numbers() -> None:
    assert whole_number("count", np.int64(3), least=1) == 3
    with pytest.raises(TypeError, match=r"`count` must be a whole number, got 1.5"):
        whole_number("count", 1.5, least=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`count` must be .*at least 1, got 0"):
        whole_number("count", 0, least=1)
