"""LoRA with PEFT on a harmonic model, class centers included: trained, saved, loaded, merged.

    python examples/lora.py

A small language model with a harmonic head learns letter by letter from Python's documentation. Then adapters teach it
Python's source code: one in its layers, and one in its layers and its centers. The second is saved and loaded, then
merged, and the merged model is saved and loaded without PEFT.

    pip install "harmax[hf]" peft
"""

import argparse
import pydoc_data.topics
import tempfile
import warnings
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

import harmax.hf
from harmax.heads.lora import lora_on_centers

LENGTH = 128
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def sequences(text: str) -> torch.Tensor:
    """Cut a text into sequences of ASCII characters, (count, LENGTH)."""
    tokens = torch.tensor(list(text.encode("ascii", "ignore")))
    return tokens[: len(tokens) // LENGTH * LENGTH].view(-1, LENGTH)


def texts() -> dict[str, torch.Tensor]:
    """Return the pages of the documentation, source files to adapt to, and others to measure the loss on."""
    files = sorted(Path(argparse.__file__).parent.glob("[a-j]*.py"))
    code = {
        name: "".join(file.read_text(encoding="utf-8") for file in files[start::4])
        for name, start in (("source code", 0), ("held-out source code", 1))
    }
    code["documentation"] = "\n".join(sorted(set(pydoc_data.topics.topics.values())))
    return {name: sequences(text) for name, text in code.items()}


def train(model: nn.Module, tokens: torch.Tensor, folder: Path, steps: int, rate: float) -> None:
    """Train a model or an adapter with the Trainer of transformers."""
    arguments = TrainingArguments(
        str(folder),
        max_steps=steps,
        per_device_train_batch_size=16,
        learning_rate=rate,
        lr_scheduler_type="cosine",
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in tokens]).train()


@torch.no_grad()
def loss_of(model: nn.Module, tokens: torch.Tensor) -> float:
    """Return the mean loss of the first sequences, in nats per character."""
    loss: torch.Tensor = model.eval()(input_ids=tokens[:128], labels=tokens[:128]).loss
    return loss.item()


def lora(layers: list[str]) -> LoraConfig:
    """Return the settings of an adapter, which may name the head."""
    return lora_on_centers(LoraConfig(target_modules=layers, r=8, task_type="CAUSAL_LM"))


def load(base: Path, adapter: Path) -> PeftModel:
    """Load an adapter. PEFT does not save what `lora_on_centers` says, so it has to be said again."""
    config = lora_on_centers(LoraConfig.from_pretrained(adapter))
    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter, config=config)


@torch.no_grad()
def moves(model: PeftModel) -> list[str]:
    """Return the characters, the one first whose center the adapter moves farthest."""
    distance = model.base_model.model.lm_head.get_delta_weight("default").norm(dim=1)
    return [chr(token) for token in distance.argsort(descending=True).tolist()]


def main(steps: int = 300) -> dict[str, float]:
    """Train a base and two adapters, save, load and merge; return the losses on held-out source code."""
    warnings.filterwarnings("ignore", message=".*tie_word_embeddings|.*save_embedding_layers|.*no longer tied")
    torch.manual_seed(0)
    text = texts()
    code, new = text["source code"], text["held-out source code"]
    sizes = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, vocab_size=128)
    config = harmax.hf.HarmonicLlamaConfig(harmonic_exponent=45, tie_word_embeddings=True, **sizes)
    losses = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = AutoModelForCausalLM.from_config(config)
        train(model, text["documentation"], folder, steps, 3e-3)
        model.save_pretrained(folder / "base")
        losses["base"] = loss_of(model, new)

        for name, layers in {"LoRA, layers": LAYERS, "LoRA, layers and centers": [*LAYERS, "lm_head"]}.items():
            torch.manual_seed(0)
            model = get_peft_model(AutoModelForCausalLM.from_pretrained(folder / "base"), lora(layers))
            train(model, code, folder, steps // 3, 1e-2)
            losses[name] = loss_of(model, new)
        moved = moves(model)
        model.save_pretrained(folder / "adapter")
        model = load(folder / "base", folder / "adapter")
        losses["saved and loaded"] = loss_of(model, new)

        merged = model.merge_and_unload()
        losses["merged"] = loss_of(merged, new)
        merged.save_pretrained(folder / "merged")
        again = AutoModelForCausalLM.from_pretrained(folder / "merged")
        losses["merged, saved and loaded"] = loss_of(again, new)
        kilobytes = {
            part: sum(file.stat().st_size for file in (folder / part).glob("*.safetensors")) / 1000
            for part in ("base", "adapter")
        }
    for name, loss in losses.items():
        print(f"{name:>28}: loss {loss:.3f} on held-out source code")
    print(f"the base has {kilobytes['base']:,.0f} kB, the adapter {kilobytes['adapter']:,.0f} kB")
    print(f"the centers that moved most belong to {' '.join(map(repr, moved[:8]))}")
    print(f"{type(again).__name__}, {again.lm_head}")
    start = torch.tensor([list(b"    def __init__(self")])
    written = again.generate(start, max_new_tokens=80, do_sample=False, pad_token_id=0)
    print(bytes(written[0].tolist()).decode("ascii"))
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="steps of the base; adapters have a third of them")
    main(parser.parse_args().steps)
