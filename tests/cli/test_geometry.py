"""`harmax geometry` from a user's side: tiny models of transformers, with a tokenizer beside them and without."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, T5Config

from harmax.cli.main import main
from harmax.data.words import SAMPLE_PAIRS
from harmax.hf import from_gpt2
from harmax.inspect.embedding import QUERIES
from harmax.train.language.gaussian import GaussianGPT2Config, GaussianGPT2LMHeadModel
from threads import one_thread
from token_shards import write_vocabulary

__all__ = ["one_thread"]

Capture = pytest.CaptureFixture[str]

PAIRED = [word for both in SAMPLE_PAIRS.values() for pair in both for word in pair]
WORDS = ["<unk>", *PAIRED, *QUERIES[:3], *(f"w{number}" for number in range(20))]
SIZES: dict[str, Any] = dict(n_positions=16, n_embd=12, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)


def planted(noise: float, *, tokens: int = len(WORDS), seed: int = 0) -> torch.Tensor:
    """Gaussian rows in which each task's second words lie one step from the first, up to noise."""
    generator = np.random.default_rng(seed)
    x_VD = generator.standard_normal((tokens, 12))
    for both in SAMPLE_PAIRS.values():
        step_D = generator.standard_normal(12)
        for first, second in both:
            x_VD[WORDS.index(second)] = x_VD[WORDS.index(first)] + step_D + noise * generator.standard_normal(12)
    return torch.tensor(x_VD, dtype=torch.float32)


def gpt2(weight_VD: torch.Tensor) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(weight_VD), **SIZES))
    with torch.no_grad():
        model.transformer.wte.weight.copy_(weight_VD)
    return model


def save_tokenizer(folder: Path, words: list[str] = WORDS) -> None:
    inner = Tokenizer(models.WordLevel({word: token for token, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>").save_pretrained(folder)


def geometry(*words: str | Path) -> int:
    return main(["geometry", *map(str, words)])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models with one vocabulary, one without its tokenizer, and one of another vocabulary."""
    root = tmp_path_factory.mktemp("models")
    gpt2(planted(1.0)).save_pretrained(root / "standard")
    from_gpt2(gpt2(planted(0.05))).save_pretrained(root / "harmonic")
    gpt2(planted(1.0)).save_pretrained(root / "bare")
    gpt2(planted(0.05, tokens=len(WORDS) + 7)).save_pretrained(root / "padded")
    for name in ("standard", "harmonic", "padded"):
        save_tokenizer(root / name)
    return root


@pytest.fixture(autouse=True)
def no_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARMAX_DATA", raising=False)
    monkeypatch.chdir(tmp_path)  # where there is no ../shared/data


def test_two_models_are_measured_and_compared(folders: Path, tmp_path: Path, capsys: Capture) -> None:
    output = tmp_path / "arrays.safetensors"
    words = ("--layers", "0", "2", "--output", output, "--json")
    assert geometry(folders / "standard", folders / "harmonic", *words) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["tasks"] == list(SAMPLE_PAIRS)
    assert found["pairs"] == "embedded"
    assert "eight embedded pairs" in printed.err
    assert "harmonic: " in printed.err  # progress
    standard, harmonic = found["models"]
    assert [standard["name"], harmonic["name"]] == ["standard", "harmonic"]
    assert harmonic["tokens"] == len(WORDS)
    assert harmonic["vocabulary"] == "its own tokenizer"
    assert harmonic["places"].keys() == {"embedding", "layer 0", "layer 2"}
    for task in SAMPLE_PAIRS:
        one, other = (model["places"]["embedding"][task] for model in (standard, harmonic))
        assert (other["word_pairs"], other["quadruples"]) == (8, 28)
        assert other["median_loss"][0] < 0.1 < 0.3 < one["median_loss"][0]
        assert other["ratio_to_shuffled"][2] < 0.5
        assert other["ratio_to_shuffled"][0] == pytest.approx(other["median_loss"][0] / other["shuffled"][0], rel=1e-4)
        inside = harmonic["places"]["layer 0"][task]
        assert inside["cosine"][0] > 0.95
        # All words are of one token here.
        assert inside["ratio_one_token"] == pytest.approx(inside["ratio_to_shuffled"][0], rel=1e-4)
        estimate, low, high = found["ratios"][0]["places"]["embedding"][task]
        assert estimate == pytest.approx(other["median_loss"][0] / one["median_loss"][0], rel=1e-4)
        assert low <= estimate <= high < 1
    asked = set(QUERIES) & set(WORDS)  # the other words are no tokens here
    assert set(harmonic["neighbors"]) == asked
    assert len(harmonic["neighbors"]["king"]) == 5
    assert 0 < harmonic["centers"]["variance_in_2_components"] < harmonic["centers"]["variance_in_10_components"] <= 1
    assert 1 < harmonic["centers"]["participation_ratio"] <= 12
    assert found["files"] == [str(output)]
    with safe_open(output, "numpy") as arrays:
        assert json.loads(arrays.metadata()["models"]) == ["standard", "harmonic"]
        losses = arrays.get_tensor("harmonic/parallelograms/capitalize/losses")
        assert np.median(losses) == pytest.approx(harmonic["places"]["embedding"]["capitalize"]["median_loss"][0])
        assert len(arrays.get_tensor("standard/layers/capitalize/2/null")) == 28
        assert arrays.get_tensor("standard/centers/neighbors/tokens").shape == (len(asked), 5)


def test_tables(folders: Path, capsys: Capture) -> None:
    assert geometry(folders / "standard", folders / "harmonic", "--tasks", "capitalize", "--layers", "1") == 0
    out = capsys.readouterr().out
    for words in (
        "harmonic / standard",
        "embedding: median loss",
        "layer 1: median loss",
        "mean cosine of steps",
        "participation ratio",
        "Nearest tokens",
        "king",
    ):
        assert words in out
    assert "present-past" not in out


def test_rows_of_padding_leave_a_vocabulary_the_same(folders: Path, capsys: Capture) -> None:
    def ratio(*models: str) -> Any:
        assert geometry(*(folders / model for model in models), "--tasks", "capitalize", "--json") == 0
        return json.loads(capsys.readouterr().out)["ratios"][0]["places"]["embedding"]["capitalize"]

    assert ratio("standard", "padded")[2] < 1
    assert ratio("padded", "standard")[1] > 1


def test_without_a_tokenizer_gpt2s_bpe_is_taken(folders: Path, tmp_path: Path, capsys: Capture) -> None:
    merges: dict[str, None] = {}
    for word in PAIRED:
        merges |= {f"{word[:end]} {word[end]}": None for end in range(1, len(word))}
    write_vocabulary(tmp_path / "vocabulary", list(merges))
    torch.manual_seed(0)
    config = GaussianGPT2Config(vocab_size=256 + len(merges) + 1 + 3, **SIZES)
    GaussianGPT2LMHeadModel(config).save_pretrained(tmp_path / "gaussian")
    words = ("--vocabulary", tmp_path / "vocabulary", "--layers", "1")
    assert geometry(tmp_path / "gaussian", *words, "--json") == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert (model["vocabulary"], model["tokens"]) == ("GPT-2's BPE", 256 + len(merges) + 1)
    assert model["places"]["layer 1"]["present-past"]["quadruples"] > 1
    assert geometry(folders / "standard", tmp_path / "gaussian", *words) == 0
    printed = capsys.readouterr()
    assert "standard and gaussian have different vocabularies" in printed.err
    assert "gaussian / standard" not in printed.out
    # Too small for the vocabulary, and much too large for it.
    assert geometry(folders / "bare", *words) == 2
    assert f"must fit the {len(WORDS)} tokens" in capsys.readouterr().err
    config = GPT2Config(vocab_size=256 + len(merges) + 1 + 2000, **SIZES)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "larger")
    assert geometry(tmp_path / "larger", *words) == 2
    assert "save the model's own tokenizer beside it" in capsys.readouterr().err


def test_a_data_folder_is_read(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    rows = [{"input": first, "output": second} for first, second in SAMPLE_PAIRS["capitalize"][:5]]
    rows += [{"input": "nobody", "output": "Nobody"}]
    (tmp_path / "function_vectors").mkdir()
    (tmp_path / "function_vectors/capitalize.json").write_text(json.dumps(rows))
    (tmp_path / "function_vectors/antonym.json").write_text(json.dumps(rows[-1:] * 4))
    monkeypatch.setenv("HARMAX_DATA", str(tmp_path))
    assert geometry(folders / "harmonic", "--tasks", "capitalize", "--quadruples", "6", "--json") == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["pairs"] == "function_vectors"
    numbers = found["models"][0]["places"]["embedding"]["capitalize"]
    assert numbers["quadruples"] == 6
    assert numbers["word_pairs"] <= 5
    assert "knows both words of 5 of 6 pairs" in printed.err
    # A task of which nothing is known.
    assert geometry(folders / "harmonic", "--tasks", "antonym", "capitalize") == 2
    message = capsys.readouterr().err
    assert "got too few for antonym (harmonic knows 0 of 4)" in message
    assert "--tasks capitalize" in message


def test_figures(folders: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "figures"
    assert geometry(folders / "standard", folders / "harmonic", "--layers", "0", "--figures", out) == 0
    names = [
        "parallelogram_cdf",
        "parallelogram_best",
        "parallelogram_median",
        "parallelogram_worst",
        "token_centers",
        "capitalize_steps",
        "layers_tasks",
    ]
    paths = [out / f"{name}.png" for name in names]
    assert capsys.readouterr().out.splitlines()[-7:] == list(map(str, paths))
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    three = [folders / name for name in ("standard", "harmonic", "padded")]
    assert geometry(*three, "--figures", out) == 2
    assert "one or two models, got 3" in capsys.readouterr().err


def test_code_that_comes_with_a_model_is_never_run(folders: Path, tmp_path: Path, capsys: Capture) -> None:
    hostile = tmp_path / "hostile"
    shutil.copytree(folders / "standard", hostile)
    trace = tmp_path / "was_run"
    (hostile / "code.py").write_text(f"open({str(trace)!r}, 'w').close()\n")
    config = json.loads((hostile / "config.json").read_text())
    config |= {"model_type": "hostile", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}}
    (hostile / "config.json").write_text(json.dumps(config))
    assert geometry(hostile) == 2
    assert "MODEL must be one that AutoModelForCausalLM loads" in capsys.readouterr().err
    assert not trace.exists()


@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [("transformers", [], "hf"), ("matplotlib", ["--figures", "figures"], "figures")],
)
def test_a_missing_extra_is_named(
    folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, module: str, words: list[str], extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert geometry(folders / "standard", *words) == 2
    assert f'run pip install "harmax[{extra}]"' in capsys.readouterr().err
    assert not Path("figures").exists()


def test_it_works_without_the_laboratory(folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("harmax.plugins.entry_points", lambda group: [])
    assert geometry(folders / "standard", "--json", "--tasks", "capitalize") == 0
    assert json.loads(capsys.readouterr().out)["tasks"] == ["capitalize"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "MODEL must be one or more different models, got none"),
        (["standard", "standard"], "name each once"),
        (["./nowhere"], "a name on the Hugging Face Hub, got './nowhere'"),
        (["empty"], "got 'empty'; name a folder that `save_pretrained` wrote"),
        (["run"], "name run/model."),
        (["translator"], "must be a causal language model, got 'translator' of type t5"),
        (["hollow"], "MODEL must be one that AutoModelForCausalLM loads, got 'hollow'"),
        (["cramped"], f"must fit the {len(WORDS) - 1} tokens of cramped, got its own tokenizer with {len(WORDS)}"),
        (["standard", "--layers", "3"], "`--layers` must be 0 to 2 for standard, got 3"),
        (["standard", "--tasks", "rhyme"], "rhyme"),
        (["standard", "--quadruples", "0"], "`--quadruples` must be 1 or more"),
        (["standard", "--device", "tpu"], "`device` must be one that this machine has"),
        (["standard", "--output", "a.npz"], "`--output` must be a .safetensors file, got 'a.npz'"),
        (["standard", "--figures", "standard/config.json"], "`--figures` must be a folder"),
    ],
)
def test_bad_usage_is_one_line_and_status_2(
    folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, words: list[str], message: str
) -> None:
    monkeypatch.chdir(folders)
    Path("empty").mkdir(exist_ok=True)
    if not Path("translator").exists():
        T5Config().save_pretrained("translator")
        GPT2Config(vocab_size=len(WORDS), **SIZES).save_pretrained("hollow")
        save_tokenizer(Path("hollow"))
        gpt2(planted(1.0)).save_pretrained("run/model")
        GPT2Config(vocab_size=len(WORDS) - 1, **SIZES).save_pretrained("cramped")
        save_tokenizer(Path("cramped"))
        capsys.readouterr()
    assert geometry(*words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    said = [line for line in printed.err.splitlines() if line.startswith("harmax: ")]
    assert message in said[-1]


def test_a_task_beyond_the_embedded_ones_needs_the_data_folder(folders: Path, capsys: Capture) -> None:
    assert geometry(folders / "standard", "--tasks", "antonym") == 1
    assert "set HARMAX_DATA to it" in capsys.readouterr().err
