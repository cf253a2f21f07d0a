"""`harmax vision`: flags, words and exit status."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import tyro

from harmax.cli.training import ShowSteps
from harmax.cli.usage import UsageError
from harmax.cli.vision import Vision

Capture = pytest.CaptureFixture[str]
QUICK = ("--epochs", "1", "--device", "cpu")


def call(*words: str) -> int:
    return tyro.cli(Vision, args=words)()


def test_smoke_trains_and_says_where_the_model_is(tmp_path: Path, capsys: Capture) -> None:
    assert call("smoke", *QUICK, "--output", str(tmp_path)) == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'model'}\n"
    assert [line.split("  ")[0] for line in err.splitlines()[:-1]] == ["step 1/16", "step 8/16", "step 16/16"]
    assert "top-1 " in err.splitlines()[-2]
    words = err.splitlines()[-1].removeprefix("load it with: ")
    scope: dict[str, Any] = {}
    exec(f"{words.split('; ')[0]}\nmodel, preparation = {words.split('; ')[1]}", scope)
    assert scope["preparation"].size == 12


def test_fields_are_flags_and_json_is_the_last_line(tmp_path: Path, capsys: Capture) -> None:
    flags = ["--head", "linear", "--lr", "0.05", "--schedule", "steps", "--milestones", "1", "--warmup", "0"]
    assert call("smoke", *QUICK, *flags, "--output", str(tmp_path), "--json") == 0
    last = json.loads(capsys.readouterr().out)
    assert (last["step"], last["lr"], last["folder"]) == (16, 0.05, str(tmp_path))
    assert json.loads((tmp_path / "model" / "config.json").read_text())["head"] == "linear"
    assert call("smoke", *QUICK, *flags, "--output", str(tmp_path), "--json") == 0  # nothing is left to do
    assert json.loads(capsys.readouterr().out) == last


def test_ctrl_c_says_where_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    show = ShowSteps.__call__

    def interrupt(self: ShowSteps, record: dict[str, Any]) -> None:
        show(self, record)
        if record["step"] == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ShowSteps, "__call__", interrupt)
    assert call("smoke", *QUICK, "--output", str(tmp_path)) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "harmax: stopped; the same command resumes after step 2."
    monkeypatch.undo()
    assert call("smoke", *QUICK, "--output", str(tmp_path)) == 0
    assert capsys.readouterr().err.splitlines()[0] == "resuming after step 2"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["imagenet"], "`data` must name a folder that has train/ and val/"),
        (["smoke", "--engine", "ddp"], "must be started by torchrun"),
        (["smoke", "--micro-batch", "5"], r"`batch` \(32\) must be a multiple of `micro_batch`"),
    ],
)
def test_bad_usage(tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(*words, "--output", str(tmp_path))


def test_a_data_set_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cifar-10-binary"):
        call("cifar10", "--data", str(tmp_path), "--output", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
