"""Harmonic GPT-2 for Hugging Face. After ``import harmax.hf`` the Auto classes know "harmonic_gpt2".

>>> from transformers import AutoConfig, AutoModelForCausalLM
>>> config = AutoConfig.for_model("harmonic_gpt2", vocab_size=50, n_positions=8, n_embd=16, n_layer=1, n_head=2)
>>> type(AutoModelForCausalLM.from_config(config)).__name__
'HarmonicGPT2LMHeadModel'
"""

from harmax.errors import needs
from harmax.hf.config import HarmonicGPT2Config
from harmax.hf.convert import from_gpt2
from harmax.hf.model import HarmonicGPT2LMHeadModel, HarmonicGPT2Model

with needs("hf"):
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

__all__ = ["HarmonicGPT2Config", "HarmonicGPT2LMHeadModel", "HarmonicGPT2Model", "from_gpt2"]

AutoConfig.register(HarmonicGPT2Config.model_type, HarmonicGPT2Config, exist_ok=True)
AutoModel.register(HarmonicGPT2Config, HarmonicGPT2Model, exist_ok=True)
AutoModelForCausalLM.register(HarmonicGPT2Config, HarmonicGPT2LMHeadModel, exist_ok=True)
# The Trainer's label smoothing looks up here whether it must shift labels. The calls above do not add to this table.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[HarmonicGPT2Config.model_type] = HarmonicGPT2LMHeadModel.__name__
