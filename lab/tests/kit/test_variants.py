"""Settings of one's own are read as their types, and a run keeps its key when its spec gets a new field."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from harmax_lab.algorithmic import modular_case
from harmax_lab.algorithmic.training import split_of
from harmax_lab.kit.experiment import Spec
from harmax_lab.kit.variants import added, stored, with_changes

CASE = modular_case.EXPERIMENT


@dataclass(frozen=True, kw_only=True)
class WideSpec(Spec):
    steps: int = 10
    rate: float = 0.1
    name: str = "a"
    pairs: tuple[str, ...] = ("a",)
    betas: tuple[float, float] = (0.9, 0.95)
    tied: bool = True
    limit: int | None = 3
    later: float = added(2.0)


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("steps", "1e4", 10_000),
        ("steps", 12, 12),
        ("rate", "1e-3", 0.001),
        ("rate", 1, 1.0),
        ("name", "b", "b"),
        ("pairs", "x,y", ("x", "y")),
        ("pairs", ["x"], ("x",)),
        ("betas", "0.8, 0.9", (0.8, 0.9)),
        ("tied", "no", False),
        ("tied", True, True),
        ("limit", "none", None),
        ("limit", "4", 4),
        ("later", 4, 4.0),
    ],
)
def test_a_value_becomes_the_type_of_its_field(field: str, text: Any, value: Any) -> None:
    found = getattr(with_changes("wide", WideSpec(), {field: text}), field)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("steps", "1.5", "`steps` must be a whole number, got '1.5'"),
        ("rate", "inf", "`rate` must be a finite number, got 'inf'"),
        ("tied", "perhaps", "`tied` must be true or false"),
        ("betas", "0.8", "`betas` must be 2 values separated by commas"),
        ("pairs", "a,,b", "`pairs` must be values separated by commas"),
        ("stepps", "3", "`wide` has no setting 'stepps'; did you mean 'steps'.*Its settings: steps, rate"),
    ],
)
def test_what_cannot_be_read_is_named(field: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_changes("wide", WideSpec(), {field: text})


def test_a_new_field_leaves_the_key_of_older_runs_alone() -> None:
    before = {
        "seeds": [50, 51, 52],
        "protocols": ["authors", "matched"],
        "epochs": 700,
        "learning_rate": 1e-3,
        "snapshots": 24,
    }
    assert json.loads(json.dumps(stored(CASE.profiles["quick"]))) == before
    assert CASE.load_spec(before) == CASE.profiles["quick"]
    changed = CASE.resolve("quick", changes={"exponent": 4})
    assert CASE.key(changed) != CASE.key(CASE.profiles["quick"])
    assert CASE.load_spec(stored(changed)) == changed
    with pytest.raises(
        ValueError, match="must have the fields of this version, got also unheard_of; it was written by"
    ):
        CASE.load_spec({**before, "unheard_of": 1})
    with pytest.raises(ValueError, match="got no epochs, snapshots and also unheard_of"):
        CASE.load_spec({"seeds": [50], "protocols": ["matched"], "learning_rate": 1e-3, "unheard_of": 1})


def test_the_case_study_is_run_as_it_is_set(tmp_path: Path) -> None:
    spec = CASE.resolve("smoke", 1, {"modulus": 7, "exponent": 4, "width": 8, "epochs": 1})
    ((cell, result), *_) = CASE.work.run_cells(spec, CASE.work.cells(spec)[-1:], modular_case.Context(tmp_path))
    assert split_of(cell).vocabulary == 7
    assert result.arrays["embedding"].shape[1:] == (7, 8)
    assert result.metrics["exponent"] == 4
    found = {cell: result}
    assert CASE.results(spec, found).spec.task == "modular_addition+modulus=7"
    with pytest.raises(ValueError, match="did you mean 'matched'"):
        replace(spec, protocols=("matchd",))
