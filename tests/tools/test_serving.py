"""Servers with a linear head decode greedily as the harmonic model does."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

import transformers
from transformers import AutoModelForCausalLM

import harmax.hf
from harmax.hf import harmonize, to_linear
from tools.gguf_files import SPECIAL, write_gguf

VOCABULARY, WIDTH, LENGTH = 259, 64, 64
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": LENGTH,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MORE = {
    "OPT": {"word_embed_proj_dim": WIDTH, "ffn_dim": WIDTH},
    "GPTNeoX": {"intermediate_size": WIDTH},
    "StableLm": {"intermediate_size": WIDTH, "num_key_value_heads": 2},
    "Llama": {"intermediate_size": WIDTH},
    "Qwen2": {"intermediate_size": 4 * WIDTH, "num_key_value_heads": 2},
    "Phi": {"intermediate_size": 4 * WIDTH, "harmonic_prior": False, "harmonic_scale": 0.5},
    "GPTJ": {"rotary_dim": 8, "harmonic_prior": False, "harmonic_scale": 0.5},
}
"""Settings of transformers beside `SIZES`. Phi and GPT-J have a bias at the head, the others do not."""


def harmonic(name: str = "GPT2") -> Any:
    """A model with random weights that are far from their initial values, so that its texts vary."""
    torch.manual_seed(0)
    own = name in ("Phi", "GPTJ")
    tower = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    prefix, library = ("Harmonic", harmax.hf) if own else ("", transformers)
    config = getattr(library, f"{prefix}{name}Config")(**SIZES, **MORE.get(name, {}))
    model = getattr(library, f"{prefix}{name}{tower}")(config)
    for parameter in model.parameters():
        parameter.data += (0.3 if parameter.dim() == 1 else 0.4) * torch.randn_like(parameter)
    return (model if own else harmonize(model, exponent=16.0, scale=0.5)).eval()


def prompts() -> Tensor:
    return torch.randint(len(SPECIAL), VOCABULARY, (5, 6), generator=torch.Generator().manual_seed(1))


def continued(model: Any, tokens: Tensor) -> Tensor:
    whole = model.generate(tokens, max_new_tokens=24, do_sample=False, suppress_tokens=[0, 1, 2])
    return whole[:, tokens.shape[1] :]


@pytest.mark.parametrize("name", ["GPT2", "OPT", "GPTNeoX", "StableLm", "Phi", "GPTJ"])
def test_a_linear_model_of_transformers_writes_the_same_tokens(name: str, tmp_path: Path) -> None:
    model = harmonic(name)
    to_linear(model).save_pretrained(tmp_path)
    linear = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(linear).__module__.startswith("transformers.")
    assert "harm" not in (tmp_path / "config.json").read_text()
    assert (linear.lm_head.bias is not None) == (name in ("Phi", "GPTJ"))
    written = continued(model, prompts())
    assert len(written.unique()) > 15, "a test of one token repeated would say little"
    assert torch.equal(continued(linear, prompts()), written)


@pytest.mark.parametrize("name", ["GPT2", "Phi", "Qwen2"])
def test_llama_cpp_writes_the_same_tokens(name: str, tmp_path: Path) -> None:
    """Phi and Qwen2 may have a bias at the output in llama.cpp; that of transformers has none for Qwen2."""
    pytest.importorskip("gguf")
    xllamacpp = pytest.importorskip("xllamacpp")
    model = harmonic(name)
    if name == "Qwen2":
        linear = model.lm_head.to_argmax_linear()
        state = {**model.state_dict(), "lm_head.weight": linear.weight.detach(), "lm_head.bias": linear.bias.detach()}
    else:
        state = to_linear(model).state_dict()
    write_gguf(harmax.hf.linear.plain_config(model.config), state, tmp_path / "model.gguf")
    settings = xllamacpp.CommonParams()
    settings.model.path = str(tmp_path / "model.gguf")
    settings.n_ctx, settings.n_parallel, settings.warmup, settings.verbosity = LENGTH, 1, False, -1
    settings.cpuparams.n_threads = 1
    server, texts = xllamacpp.Server(settings), []
    for prompt in prompts().tolist():
        request = {"prompt": prompt, "n_predict": 24, "temperature": 0.0, "ignore_eos": True}
        request["logit_bias"] = [[token, False] for token in range(len(SPECIAL))]  # never
        texts.append(server.handle_completions(request)["choices"][0]["text"])
    assert texts == ["".join(f"t{token}," for token in row) for row in continued(model, prompts()).tolist()]


def test_what_sampling_needs_is_the_length_of_the_features() -> None:
    """The distance follows from the linear logit and |x|: |c x - w_j|^2 = c^2 |x|^2 - 2 (c w_j . x - |w_j|^2 / 2)."""
    model = harmonic()
    model.transformer.ln_f.weight.data.fill_(2.0)
    model.transformer.ln_f.bias.data.zero_()  # so that all features have one length, and a server need not report it
    linear, head = to_linear(model), model.lm_head
    squared = (2.0 * head.scale) ** 2 * WIDTH - 2 * linear(prompts()).logits
    found = (-0.5 * head.exponent * squared.log()).log_softmax(-1)
    torch.testing.assert_close(found, model(prompts()).logits, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(linear(prompts()).logits.softmax(-1), found.exp(), atol=0.05), "linear ones are others"


def test_a_norm_with_a_weight_of_zero_is_refused() -> None:
    model = harmonic()
    model.transformer.ln_f.weight.data[:5] = 0
    with pytest.raises(ValueError, match=r"norm before the head must have finite weights other than 0"):
        to_linear(model)


def test_models_that_no_linear_head_can_serve_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"bias at its head, or a LayerNorm .* got LlamaForCausalLM with LlamaRMSNorm"):
        to_linear(harmonic("Llama"))
    with pytest.raises(ValueError, match="must have no prior"):
        to_linear(harmonize(transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES)), prior=True))
    with pytest.raises(TypeError, match="must be a harmonic causal language model, got GPT2LMHeadModel"):
        to_linear(transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES)))


def test_a_model_without_a_prior_is_loaded_though_its_class_has_a_bias(tmp_path: Path) -> None:
    model = harmonic("Phi")
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.lm_head.prior is None
    torch.testing.assert_close(loaded(prompts()).logits, model(prompts()).logits)
