"""A trained language model of transformers becomes harmonic without a jump of its loss, in the Trainer.

    python examples/harmonize_trainer.py

It trains a small Llama with a linear head, gives it a harmonic head with the same loss, and trains on while the
softening goes to 0. Then it saves the model, loads it with an Auto class, and lets it write. Half a minute on a CPU;
needs `pip install "harmax[hf]"`.
"""

import argparse
import codecs
import contextlib
import io
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from harmax.hf import HardeningCallback, harmonize

with contextlib.redirect_stdout(io.StringIO()):  # it prints itself
    import this

TEXT = codecs.decode(this.s, "rot13")  # the Zen of Python
LETTERS = sorted(set(TEXT))
LENGTH = 64


def sequences() -> list[dict[str, torch.Tensor]]:
    """Cut the text into overlapping sequences of characters."""
    tokens = torch.tensor([LETTERS.index(letter) for letter in TEXT])
    return [{"input_ids": part, "labels": part} for part in tokens.unfold(0, LENGTH, 8)]


def train(model: LlamaForCausalLM, folder: Path, steps: int, **options: object) -> None:
    """Train with the Trainer of transformers."""
    arguments = TrainingArguments(
        str(folder),
        max_steps=steps,
        per_device_train_batch_size=16,
        learning_rate=5e-3,
        lr_scheduler_type="cosine",
        logging_steps=steps,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(model, arguments, train_dataset=sequences(), **options).train()


@torch.no_grad()
def loss_of(model: LlamaForCausalLM) -> float:
    """Return the mean loss over the text."""
    tokens = torch.stack([sequence["input_ids"] for sequence in sequences()])
    loss: torch.Tensor = model.eval()(tokens, labels=tokens).loss
    return loss.item()


def main(steps: int = 150) -> dict[str, float]:
    """Train, convert, train on, save, load and write; return the losses."""
    torch.manual_seed(0)
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(LETTERS), tie_word_embeddings=True, **sizes))
    losses = {}
    with tempfile.TemporaryDirectory() as folder:
        train(model, Path(folder), steps)
        losses["linear"] = loss_of(model)
        harmonize(model, match=True)
        losses["harmonic, at once"] = loss_of(model)
        train(model, Path(folder), steps, callbacks=[HardeningCallback()])
        losses["harmonic, without softening"] = loss_of(model)
        model.save_pretrained(folder)
        again = AutoModelForCausalLM.from_pretrained(folder)
    for name, loss in losses.items():
        print(f"{name:>28}: loss {loss:.3f}")
    print(f"{type(again).__name__}, {again.lm_head}")
    start = torch.tensor([[LETTERS.index(letter) for letter in "Beautiful is "]])
    written = again.generate(start, max_new_tokens=40, do_sample=False, pad_token_id=0)
    print("".join(LETTERS[token] for token in written[0].tolist()))
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150, help="steps of either training")
    main(parser.parse_args().steps)
