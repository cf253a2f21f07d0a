"""`harmax pretrain`: flags, words and exit status."""

import importlib.machinery
import importlib.util
import json
import signal
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from harmax.cli.main import main
from harmax.cli.pretrain import ShowSteps

Capture = pytest.CaptureFixture[str]
QUICK = ("--steps", "3", "--n-layer", "1", "--device", "cpu")


def test_smoke_trains_and_says_where_the_model_is(tmp_path: Path, capsys: Capture) -> None:
    assert main(["pretrain", "smoke", *QUICK, "--output", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'model'}\n"
    assert [line.split("  ")[0] for line in err.splitlines()] == ["step 1/3", "step 2/3", "step 3/3"]
    assert "val " in err.splitlines()[-1]
    assert (tmp_path / "model" / "config.json").is_file()


def test_fields_of_the_spec_are_flags_and_json_is_the_last_line(tmp_path: Path, capsys: Capture) -> None:
    flags = ["--head", "linear", "--lr", "0.005", "--warmup", "0", "--min-lr", "0.005", "--betas", "0.8", "0.9"]
    assert main(["pretrain", "smoke", *QUICK, *flags, "--output", str(tmp_path), "--json"]) == 0
    last = json.loads(capsys.readouterr().out)
    assert (last["step"], last["lr"], last["folder"]) == (3, 0.005, str(tmp_path))
    assert json.loads((tmp_path / "model" / "config.json").read_text())["model_type"] == "gpt2"


def test_control_arms_are_flags(tmp_path: Path) -> None:
    flags = ["--head", "gaussian", "--logit-scale", "2.5"]
    assert main(["pretrain", "smoke", *QUICK, *flags, "--output", str(tmp_path)]) == 0
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (config["model_type"], config["logit_scale"]) == ("gaussian_gpt2", 2.5)


def test_it_goes_on_and_refuses_another_spec(tmp_path: Path, capsys: Capture) -> None:
    command = [
        "pretrain",
        "smoke",
        "--n-layer",
        "1",
        "--device",
        "cpu",
        "--decay-steps",
        "5",
        "--output",
        str(tmp_path),
    ]
    assert main([*command, "--steps", "2"]) == 0
    capsys.readouterr()
    assert main([*command, "--steps", "4"]) == 0
    assert capsys.readouterr().err.splitlines()[0] == "going on after step 2"
    assert main([*command, "--steps", "4", "--seed", "1"]) == 2
    assert "`seed` 0 there and 1 here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--micro-batch", "5"], "`sequences` (16) must be a multiple of `micro_batch` x processes, got 5 x 1"),
        (["--engine", "ddp"], "must be started by torchrun"),
        (["--device", "tpu"], "`device` must be one that this machine has"),
        (["--steps", "0"], "`steps` must be at least 1"),
    ],
)
def test_bad_usage(tmp_path: Path, capsys: Capture, flags: list[str], message: str) -> None:
    try:
        status = main(["pretrain", "smoke", *flags, "--output", str(tmp_path)])
    except SystemExit as stop:  # what the dataclass itself refuses, tyro reports
        status = int(stop.code or 0)
    assert status == 2
    said = capsys.readouterr()
    assert message in said.err + said.out


def test_loggers_get_every_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    lines: list[tuple[int, dict[str, Any]]] = []
    ended: list[bool] = []

    class Run:
        def log(self, values: dict[str, Any], *, step: int) -> None:
            lines.append((step, values))

        def finish(self) -> None:
            ended.append(True)

    library = types.ModuleType("wandb")
    library.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
    library.init = lambda **settings: Run()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", library)
    assert main(["pretrain", "smoke", *QUICK, "--log", "wandb", "--output", str(tmp_path)]) == 0
    assert [step for step, _ in lines] == [1, 2, 3]
    assert {"loss", "val_loss", "lr", "tokens_per_s"} <= lines[-1][1].keys()
    assert ended == [True]


@pytest.mark.parametrize(("name", "message"), [("wandb", "must be installed to log there"), ("paper", "logger")])
def test_loggers_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, name: str, message: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["pretrain", "smoke", *QUICK, "--log", name, "--output", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_ctrl_c_says_where_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    show = ShowSteps.__call__

    def interrupt(self: ShowSteps, record: dict[str, Any]) -> None:
        show(self, record)
        if record["step"] == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ShowSteps, "__call__", interrupt)
    assert main(["pretrain", "smoke", *QUICK, "--output", str(tmp_path)]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "harmax: stopped; the same command goes on after step 2."
