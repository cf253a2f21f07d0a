"""The first-hour pages: what they show is what a reader sees. `make test-walks` runs the long commands too."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import walks
from harmax.cli import main as cli
from walks import PAGES, ROOT

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
CHECKOUT = "git clone https://github.com/harmax/harmax"


@pages
def test_every_short_command_does_what_the_page_says(page, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", sys.path)
    Path("examples").symlink_to(ROOT / "examples")
    ran = 0
    for block in walks.blocks(page):
        if block.language == "python":
            walks.save(block, tmp_path)
        elif not block.is_long:
            capfd.readouterr()
            for words in walks.commands(block):
                run_here(words)
                ran += 1
            printed = "".join(capfd.readouterr())
            assert not walks.missing(block.seen, printed), printed
    assert ran >= 4


def run_here(words):
    """Run a command in this process, which has torch already."""
    program, *rest = words
    if program == "harmax":
        assert cli.main(rest) == 0
    elif program == "python":
        sys.argv = rest
        runpy.run_path(rest[0], run_name="__main__")
    else:
        subprocess.run(words, check=True)


@pages
def test_a_page_has_ten_to_fifteen_steps_and_starts_with_a_clone(page):
    steps = [line for line in page.read_text().splitlines() if line.startswith("## ")]
    numbers = [int(step.split()[1].rstrip(".")) for step in steps if step.split()[1].rstrip(".").isdigit()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert 10 <= len(numbers) <= 15
    assert walks.blocks(page)[0].text.startswith(CHECKOUT)


@pages
def test_long_commands_have_words_that_harmax_knows(page, monkeypatch):
    for block in walks.blocks(page):
        for words in walks.commands(block) if block.is_long else ():
            if words[0] == "harmax":
                cli._read(words[1:])  # parsed, not run: bad words are an error


def test_shown_output_that_is_not_there_is_noticed():
    assert walks.missing(["accuracy 99.3 %", "..."], "accuracy  97 %\n") == []
    assert walks.missing(["precision 99.3 %"], "accuracy  97 %\n") == ["precision 99.3 %"]


@pytest.mark.walk
@pages
def test_every_command_runs_from_a_fresh_clone(page, tmp_path):
    """Nothing is left out here: the clone, the installation, and what takes minutes."""
    clone = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{ROOT}.insteadOf",
        "GIT_CONFIG_VALUE_0": CHECKOUT.split()[-1],
    }
    path = f"{tmp_path}/harmax/.venv/bin{os.pathsep}{os.environ['PATH']}"
    folder = tmp_path
    for block in walks.blocks(page):
        if block.language == "python":
            walks.save(block, folder)
        else:
            printed = walks.run_bash(block, folder, {**clone, "PATH": path})
            assert not walks.missing(block.seen, printed), printed
        folder = tmp_path / "harmax"
