"""Where metrics go besides metrics.jsonl: every line, once, whatever happened to the run."""

import importlib.machinery
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from harmax.cli.main import main
from harmax.train.loggers import LOGGERS
from train.language.tiny import flags, lines, spec

SETTINGS = spec(decay_steps=20)


def train(output: Path, steps: int, logger: str) -> int:
    own = ["--steps", str(steps), "--device", "cpu", "--log", logger, "--output", str(output)]
    return main(["pretrain", *flags(SETTINGS), *own])


class Recorded:
    """Stands for the parts of both libraries that are used, and keeps what it is told."""

    opened: list[dict[str, Any]]
    told: list[tuple[int, dict[str, Any]]]
    ended: int

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.opened.append({**settings, "arguments": arguments})

    def log(self, values: dict[str, Any], *, step: int) -> None:
        self.told.append((step, values))

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.told.append((step, {name: value}))

    def flush(self) -> None:
        pass

    def finish(self) -> None:
        Recorded.ended += 1

    close = finish


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> type[Recorded]:
    Recorded.opened, Recorded.told, Recorded.ended = [], [], 0
    for name, function in (("wandb", "init"), ("tensorboard", ""), ("torch.utils.tensorboard", "SummaryWriter")):
        library = types.ModuleType(name)
        library.__spec__ = importlib.machinery.ModuleSpec(name, None)
        setattr(library, function or "nothing", Recorded)
        monkeypatch.setitem(sys.modules, name, library)
    return Recorded


@pytest.mark.parametrize("name", LOGGERS)
def test_loggers_get_every_number_of_every_line(libraries: type[Recorded], tmp_path: Path, name: str) -> None:
    assert train(tmp_path, 10, name) == 0
    found: dict[int, dict[str, Any]] = {}
    for step, values in libraries.told:
        found.setdefault(step, {"step": step}).update(values)
    assert list(found.values()) == lines(tmp_path)
    assert "val_loss" in found[10]
    assert libraries.ended == 1


def test_a_run_that_goes_on_is_one_run_of_wandb_and_another_folder_is_another(
    libraries: type[Recorded], tmp_path: Path
) -> None:
    for folder, steps in (("a", 2), ("a", 4), ("b", 2)):
        assert train(tmp_path / folder / "gpt2", steps, "wandb") == 0
    first, again, other = libraries.opened
    assert first["name"] == again["name"] == other["name"] == "gpt2"
    assert first["id"] == again["id"] != other["id"]
    assert first["resume"] == "allow"
    assert first["config"]["n_embd"] == 16


def test_tensorboard_forgets_what_comes_again(libraries: type[Recorded], tmp_path: Path) -> None:
    for steps in (5, 9):
        assert train(tmp_path, steps, "tensorboard") == 0
    assert [opened["purge_step"] for opened in libraries.opened] == [1, 6]


if importlib.util.find_spec("tensorboard") is not None:

    @pytest.mark.filterwarnings("default")  # of libraries that only this test loads
    def test_tensorboard_reads_every_number_once_after_a_kill(tmp_path: Path) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        assert train(tmp_path, 4, "tensorboard") == 0
        lost = LOGGERS["tensorboard"](SETTINGS, tmp_path, 4)
        for step in (5, 6):
            lost({"step": step, "loss": 99.0})  # flushed, and never closed
        assert train(tmp_path, 10, "tensorboard") == 0
        written = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
        for name in ("loss", "lr", "gradient_norm", "tokens_per_s", "val_loss"):
            found = [(scalar.step, scalar.value) for scalar in written.Scalars(name)]
            wanted = [(line["step"], pytest.approx(line[name])) for line in lines(tmp_path) if name in line]
            assert found == wanted


@pytest.mark.parametrize(("name", "message"), [("wandb", "`wandb` is not installed"), ("paper", "logger")])
def test_loggers_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert train(tmp_path, 1, name) == 2
    assert message in capsys.readouterr().err
