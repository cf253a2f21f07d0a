"""`harmax pretrain`: flags, words and exit status."""

import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from harmax.cli.main import main
from harmax.cli.training import ShowSteps
from harmax.train.language import PRESETS
from harmax.train.language.presets import DESCRIPTIONS as LANGUAGE
from harmax.train.language.step import LanguageStep
from harmax.train.vision import VISION_PRESETS
from harmax.train.vision.presets import DESCRIPTIONS as VISION

Capture = pytest.CaptureFixture[str]
QUICK = ("--steps", "3", "--warmup", "1", "--n-layer", "1", "--device", "cpu")


@pytest.mark.parametrize("head", ["harmonic", "linear", "gaussian"])
def test_smoke_trains_and_says_where_the_model_is_and_how_to_load_it(
    tmp_path: Path, capsys: Capture, head: str
) -> None:
    assert main(["pretrain", "smoke", *QUICK, "--head", head, "--output", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'model'}\n"
    *shown, kind, load = err.splitlines()
    assert [line.split("  ")[0] for line in shown] == ["step 1/3", "step 2/3", "step 3/3"]
    assert "val " in shown[-1]
    assert "tokens were generated" in kind
    statement, expression = load.removeprefix("load it with: ").split("; ")
    names: dict[str, Any] = {}
    exec(statement, names)
    assert eval(expression, names).config.n_layer == 1


def test_fields_of_the_spec_are_flags_and_json_is_the_last_line(tmp_path: Path, capsys: Capture) -> None:
    flags = ["--head", "linear", "--lr", "0.005", "--min-lr", "0.005", "--betas", "0.8", "0.9"]
    assert main(["pretrain", "smoke", *QUICK, *flags, "--output", str(tmp_path), "--json"]) == 0
    last = json.loads(capsys.readouterr().out)
    assert (last["step"], last["lr"], last["folder"]) == (3, 0.005, str(tmp_path))
    assert last["model"] == str(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["model_type"] == "gpt2"


def test_control_arms_are_flags(tmp_path: Path) -> None:
    flags = ["--head", "gaussian", "--logit-scale", "2.5"]
    assert main(["pretrain", "smoke", *QUICK, *flags, "--output", str(tmp_path)]) == 0
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (config["model_type"], config["logit_scale"]) == ("gaussian_gpt2", 2.5)


def test_a_run_without_numbers_is_told_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    command = ["pretrain", "smoke", *QUICK, "--checkpoint-every", "1", "--output", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(LanguageStep, "evaluate", lambda self, batches: torch.tensor(math.nan))
        assert main(command) == 1
    assert "the checkpoint of step 2 is kept: lower `lr` or" in capsys.readouterr().err
    assert main([*command, "--lr", "0.002"]) == 2
    assert "or add --change-schedule to resume with the new values" in capsys.readouterr().err
    assert main([*command, "--lr", "0.002", "--change-schedule"]) == 0
    assert capsys.readouterr().err.startswith("resuming after step 2\n")


def test_it_goes_on_and_refuses_another_spec(tmp_path: Path, capsys: Capture) -> None:
    command = [
        "pretrain",
        "smoke",
        "--n-layer",
        "1",
        "--device",
        "cpu",
        "--decay-steps",
        "6",
        "--output",
        str(tmp_path),
    ]
    assert main([*command, "--steps", "2"]) == 0
    capsys.readouterr()
    assert main([*command, "--steps", "4"]) == 0
    assert capsys.readouterr().err.splitlines()[0] == "resuming after step 2"
    assert main([*command, "--steps", "4", "--seed", "1"]) == 2
    assert "`seed` (0 there, 1 here)" in capsys.readouterr().err


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


def test_an_output_that_is_a_file_is_refused_under_the_name_of_its_flag(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").touch()
    assert main(["pretrain", "smoke", "--output", str(tmp_path / "file" / "run")]) == 2
    assert "`--output` must be a folder, got" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_says_where_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, number: int
) -> None:
    show = ShowSteps.__call__

    def interrupt(self: ShowSteps, record: dict[str, Any]) -> None:
        show(self, record)
        if record["step"] == 1:
            signal.raise_signal(number)

    monkeypatch.setattr(ShowSteps, "__call__", interrupt)
    assert main(["pretrain", "smoke", *QUICK, "--output", str(tmp_path)]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "harmax: stopped; the same command resumes after step 2."


@pytest.mark.parametrize(("verb", "descriptions"), [("pretrain", LANGUAGE), ("vision", VISION)])
def test_help_describes_every_preset_and_every_field(
    verb: str, descriptions: dict[str, str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert descriptions.keys() == (PRESETS if verb == "pretrain" else VISION_PRESETS).keys()
    for name, words in descriptions.items():
        assert name in shown
        assert words[:40] in shown
    with pytest.raises(SystemExit):
        main([verb, "smoke", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "Peak learning rate" in shown
    assert "When resuming, accept new values" in shown
