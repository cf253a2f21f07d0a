"""The command `harmax`: its help, its errors and its exit status."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from harmax.cli.main import main
from harmax.cli.verbs import LAB_VERBS, all_verbs

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[2]


# What help has no use for, and what takes long to import.
HEAVY = {"transformers", "matplotlib", "safetensors", "tiktoken", "sklearn", "PIL", "kornia", "torch._inductor"}


@pytest.mark.parametrize("verb", LAB_VERBS)
def test_without_the_laboratory_its_verbs_say_what_to_install(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("harmax.plugins.entry_points", lambda group: [])
    monkeypatch.setitem(sys.modules, "tyro", None)  # harmax-lab brings what the command line needs
    monkeypatch.chdir(tmp_path)
    assert main([verb]) == 2
    printed = capsys.readouterr()
    assert (
        printed.err
        == f"harmax: `harmax {verb}` needs harmax-lab, which is not installed; run pip install harmax-lab.\n"
    )
    assert printed.out == ""
    assert not list(tmp_path.iterdir())


def test_the_laboratory_brings_the_verbs_that_are_promised() -> None:
    assert {name for name, (place, _) in all_verbs().items() if place.startswith("harmax_lab.")} == set(LAB_VERBS)


@pytest.mark.parametrize("installed", [True, False])
def test_an_unknown_verb_is_bad_usage(
    installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    if not installed:  # what the command line needs
        monkeypatch.setitem(sys.modules, "tyro", None)
    monkeypatch.chdir(tmp_path)
    assert main(["runn", "toy_cases"]) == 2
    printed = capsys.readouterr()
    assert all(verb in printed.err for verb in all_verbs())
    assert printed.err.endswith("got 'runn'; did you mean 'run'?\n")
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("module", ["tyro", "rich"])
def test_without_the_extra_the_command_says_how_to_install_it(module: str) -> None:
    code = f"import sys; sys.modules[{module!r}] = None; from harmax.cli.main import main; sys.exit(main(['doctor']))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert 'run pip install "harmax[cli]"' in result.stderr


INTERRUPTED = """
import os, signal, sys
from importlib import import_module
signal.signal(signal.SIGINT, signal.default_int_handler)  # where tests run in the background it is ignored
class CtrlC:
    def find_spec(self, name, *rest):
        if name == "torch":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, CtrlC())
module, function = sys.argv.pop(1).split(":")
sys.exit(getattr(import_module(module), function)())
"""


def test_ctrl_c_while_torch_is_imported_ends_the_command_with_a_line() -> None:
    command = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["harmax"]
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, command, "doctor"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "harmax: stopped before it began.\n")


def loaded_by(*words: str) -> set[str]:
    """Names of the modules that a command leaves imported."""
    code = f"import sys; from harmax.cli.main import main; main({list(words)!r})"
    tell = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
    done = subprocess.run([sys.executable, "-c", tell + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def own_verbs(modules: set[str]) -> set[str]:
    files = {where.partition(":")[0] for where, _ in all_verbs().values()}
    return modules & files


def test_help_imports_no_verb_and_no_experiment() -> None:
    modules = loaded_by("--help")
    assert own_verbs(modules) == set()
    assert not any(
        name.startswith(("harmax_lab.experiments", "harmax.train", "harmax_lab.kit.engine")) for name in modules
    )
    assert not modules & {*HEAVY, "torch._dynamo"}


@pytest.mark.parametrize("name", all_verbs())
def test_every_verb_explains_itself(name: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: harmax {name}")
    assert all_verbs()[name][1].endswith(".")


def test_help_names_every_verb_and_says_what_it_does(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    lines = " ".join(line.strip("│ ") for line in capsys.readouterr().out.splitlines())
    for name, (_, words) in all_verbs().items():
        assert f"• {name}" in lines
        assert words in lines


def test_completion_knows_the_flags_of_every_verb(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--tyro-print-completion", "bash"])
    assert not stop.value.code
    script = capsys.readouterr().out
    assert all(flag in script for flag in ("--smoke", "--neighbors", "--shard-tokens", "--micro-batch"))


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["bench", "--help"],
        ["data", "text", "--help"],
        ["doctor"],
        ["data", "images", "--list"],
        ["nothing"],
    ],
)
def test_a_terminal_that_knows_only_ascii_shows_no_traceback(words: list[str], tmp_path: Path) -> None:
    data = tmp_path / "data\u00fc"
    data.mkdir()
    ascii_only = {
        "LC_ALL": "C",
        "LANG": "C",
        "PYTHONIOENCODING": "ascii",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    }
    done = subprocess.run(
        [sys.executable, "-m", "harmax", *words],
        capture_output=True,
        env={**os.environ, **ascii_only, "HARMAX_DATA": str(data)},
    )
    assert b"Traceback" not in done.stderr
    assert done.returncode == (2 if words == ["nothing"] else 0)
    assert (done.stdout + done.stderr).isascii()


def test_output_that_the_shell_has_closed_is_no_error() -> None:
    done = subprocess.run(["bash", "-c", f"{sys.executable} -m harmax doctor >&-"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_stops_early_gets_no_traceback() -> None:
    code = "import sys; from harmax.cli.main import main; sys.stdout.flush(); sys.exit(main(['--help']))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
