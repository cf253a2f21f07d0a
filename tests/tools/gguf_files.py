"""Write a small model of transformers as a GGUF file, the format of llama.cpp. Its tokens are the words t0, t1, ..."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

SPECIAL = ["<unk>", "<s>", "</s>"]
"""The first three tokens. llama.cpp wants them."""

GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{}.attn_norm": "transformer.h.{}.ln_1",
    "blk.{}.ffn_norm": "transformer.h.{}.ln_2",
    "blk.{}.attn_qkv": "transformer.h.{}.attn.c_attn",
    "blk.{}.attn_output": "transformer.h.{}.attn.c_proj",
    "blk.{}.ffn_up": "transformer.h.{}.mlp.c_fc",
    "blk.{}.ffn_down": "transformer.h.{}.mlp.c_proj",
}
PHI2 = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.final_layernorm",
    "output": "lm_head",
    "blk.{}.attn_norm": "model.layers.{}.input_layernorm",
    "blk.{}.attn_q": "model.layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "model.layers.{}.self_attn.k_proj",
    "blk.{}.attn_v": "model.layers.{}.self_attn.v_proj",
    "blk.{}.attn_output": "model.layers.{}.self_attn.dense",
    "blk.{}.ffn_up": "model.layers.{}.mlp.fc1",
    "blk.{}.ffn_down": "model.layers.{}.mlp.fc2",
}
QWEN2 = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{}.attn_norm": "model.layers.{}.input_layernorm",
    "blk.{}.attn_q": "model.layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "model.layers.{}.self_attn.k_proj",
    "blk.{}.attn_v": "model.layers.{}.self_attn.v_proj",
    "blk.{}.attn_output": "model.layers.{}.self_attn.o_proj",
    "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_gate": "model.layers.{}.mlp.gate_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.up_proj",
    "blk.{}.ffn_down": "model.layers.{}.mlp.down_proj",
}
NAMES = {"gpt2": ("gpt2", GPT2), "phi": ("phi2", PHI2), "qwen2": ("qwen2", QWEN2)}
"""By the model type of transformers: the architecture of llama.cpp, and its names beside those of transformers."""


def write_gguf(config: Any, state: dict[str, Tensor], path: Path) -> None:
    """Write a model, given its configuration and its state_dict; which architectures, `NAMES` says."""
    import gguf

    architecture, names = NAMES[config.model_type]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(4 * config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    if architecture != "gpt2":
        writer.add_head_count_kv(config.num_attention_heads)
    if architecture == "phi2":
        writer.add_rope_dimension_count(int(config.hidden_size // config.num_attention_heads / 2))
    writer.add_layer_norm_eps(1e-5)
    writer.add_layer_norm_rms_eps(1e-6)
    words = SPECIAL + [f"t{number}," for number in range(len(SPECIAL), config.vocab_size)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(words)
    writer.add_token_scores([0.0] * len(words))
    writer.add_token_types([2, 3, 3] + [1] * (len(words) - len(SPECIAL)))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    for name, values in renamed(state, names, config.num_hidden_layers):
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def renamed(state: dict[str, Tensor], names: dict[str, str], layers: int) -> Iterator[tuple[str, np.ndarray]]:
    for new, old in names.items():
        for layer in range(layers if "{}" in new else 1):
            for end in ("weight", "bias"):
                tensor = state.get(f"{old}.{end}".format(layer))
                if tensor is None:
                    continue
                is_conv = old.rpartition(".")[2].startswith("c_") and end == "weight"  # GPT-2 multiplies from the left
                yield f"{new}.{end}".format(layer), np.ascontiguousarray((tensor.T if is_conv else tensor).numpy())
