"""Small models of transformers with random weights, by a short name; `FOLDERS` is what the tests save and load."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

WORDS, WIDTH, LENGTH, LABELS = 50, 16, 12, 3

_SIZES = dict(
    vocab_size=WORDS,
    hidden_size=WIDTH,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    bos_token_id=1,
    eos_token_id=None,
    pad_token_id=0,
    initializer_range=0.3,
)
_GROUPED = dict(_SIZES, num_key_value_heads=1, head_dim=8)
_GPT2 = dict(
    vocab_size=WORDS,
    n_embd=WIDTH,
    n_layer=2,
    n_head=2,
    n_positions=32,
    bos_token_id=1,
    eos_token_id=None,
    pad_token_id=0,
    initializer_range=0.3,
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
)
_STILL = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
_VIT = {**{key: _SIZES[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers")}, **_STILL}

_MAKERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", _SIZES),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", dict(_SIZES, num_key_value_heads=1)),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", _GROUPED),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", _GROUPED),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", _GPT2),
    "mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        dict(_GROUPED, num_local_experts=2, output_router_logits=True, router_aux_loss_coef=0.5),
    ),
    "bert": ("BertForMaskedLM", "BertConfig", {**_SIZES, **_STILL}),
    "bert_classifier": ("BertForSequenceClassification", "BertConfig", {**_SIZES, **_STILL, "num_labels": LABELS}),
    "llama_classifier": ("LlamaForSequenceClassification", "LlamaConfig", {**_SIZES, "num_labels": LABELS}),
    "vit": (
        "ViTForImageClassification",
        "ViTConfig",
        dict(_VIT, num_attention_heads=2, image_size=16, patch_size=8, num_labels=LABELS, initializer_range=0.3),
    ),
}

LANGUAGE = ("llama", "qwen2", "qwen3", "gemma3", "gpt2", "mixtral", "bert")
CLASSIFIERS = ("bert_classifier", "llama_classifier", "vit")
FOLDERS = [(name, tied) for name in LANGUAGE for tied in (True, False)] + [(name, False) for name in CLASSIFIERS]


def plain(name: str, *, tied: bool = False, seed: int = 0, **settings: Any) -> Any:
    """A model of transformers, in evaluation mode."""
    model, config, sizes = _MAKERS[name]
    if name in LANGUAGE:
        settings = {"tie_word_embeddings": tied, **settings}
    torch.manual_seed(seed)
    made = getattr(transformers, model)(getattr(transformers, config)(**{**sizes, **settings}))
    if name == "bert":
        nn.init.normal_(made.cls.predictions.bias)
    return made.eval()


def batch(name: str, rows: int = 3, seed: int = 1) -> dict[str, Tensor]:
    """Inputs with labels, some of which are ignored."""
    draw = torch.Generator().manual_seed(seed)
    if name == "vit":
        inputs = {"pixel_values": torch.randn(rows, 3, 16, 16, generator=draw)}
    else:
        inputs = {"input_ids": torch.randint(2, WORDS, (rows, LENGTH), generator=draw)}
    if name in CLASSIFIERS:
        return {**inputs, "labels": torch.arange(rows) % LABELS}
    labels = inputs["input_ids"].clone()
    labels[0, :5] = -100
    return {**inputs, "labels": labels}


def head_of(name: str) -> Callable[[Any], Any]:
    """Where the head of a model is."""
    paths = {
        "bert": "cls.predictions.decoder",
        "bert_classifier": "classifier",
        "llama_classifier": "score",
        "vit": "classifier",
    }
    return lambda model: model.get_submodule(paths.get(name, "lm_head"))
