"""The harmonic classes of transformers: made when they are first needed, and known to the Auto classes.

Every model type of transformers has a harmonic one, such as "harmonic_llama". Its configuration class, and the model
classes that belong to it, are made when a configuration of this type is read or a model is harmonized.
"""

from __future__ import annotations

from typing import Any

from harmax.errors import needs
from harmax.hf.config import PREFIX, harmonic_config, once
from harmax.hf.gpt2 import HarmonicGPT2LMHeadModel, HarmonicGPT2Model
from harmax.hf.kinds import kind_of, shifts_labels
from harmax.hf.tasks import HarmonicClassifier, HarmonicLanguageModel

with needs("hf"):
    import transformers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedConfig, PreTrainedModel
    from transformers.models.auto import modeling_auto as auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

HEADS = (
    auto.MODEL_FOR_CAUSAL_LM_MAPPING,
    auto.MODEL_FOR_MASKED_LM_MAPPING,
    auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
)
"""The tables of the Auto classes whose models can be harmonic."""


@once
def config_class(plain: type[Any]) -> type[Any]:
    """Return the harmonic configuration class of one of transformers, registered with its models."""
    config = harmonic_config(plain)
    CONFIG_MAPPING.register(config.model_type, config, exist_ok=True)
    body: Any = auto.MODEL_MAPPING.get(plain, None)
    if body is not None:
        body = HarmonicGPT2Model if plain is GPT2Config else body
        auto.MODEL_MAPPING.register(config, body, exist_ok=True)
    for table in HEADS:
        models: Any = table.get(plain, ())
        for model in models if isinstance(models, tuple) else (models,):
            if is_supported(model):
                table.register(config, model_class(model), exist_ok=True)
                break
    return config


def is_supported(plain: type[Any]) -> bool:
    """Return whether models of a class can have a harmonic head."""
    try:
        kind_of(plain)
    except ValueError:
        return False
    return True


@once
def model_class(plain: type[Any]) -> type[Any]:
    """Return the harmonic subclass of a model class of transformers.

    >>> from transformers import LlamaForCausalLM
    >>> model_class(LlamaForCausalLM).__mro__[1:3]
    (<class 'harmax.hf.tasks.HarmonicLanguageModel'>, <class 'harmax.hf.model.HarmonicModel'>)
    """
    if plain is GPT2LMHeadModel:
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["harmonic_gpt2"] = HarmonicGPT2LMHeadModel.__name__
        return HarmonicGPT2LMHeadModel
    kind, shifts, name = kind_of(plain), shifts_labels(plain), f"Harmonic{plain.__name__}"
    contents: dict[str, Any] = {
        "__doc__": f"{plain.__name__} of transformers with a harmonic head.",
        "__module__": "harmax.hf",
        "config_class": harmonic_config(plain.config_class),
    }
    base: type = HarmonicClassifier
    if kind != "classifier":
        base, contents["harmonic_shifts"] = HarmonicLanguageModel, shifts
    made = type(name, (base, plain), contents)
    if shifts:
        # The Trainer's label smoothing looks up here whether it must shift labels.
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[contents["config_class"].model_type] = name
    return made


def by_name(name: str) -> Any:
    """Return a harmonic class such as HarmonicLlamaForCausalLM or HarmonicLlamaConfig.

    Raises:
        AttributeError: if transformers has no such class, or one that cannot be harmonic.
    """
    plain = getattr(transformers, name.removeprefix("Harmonic"), None) if name.startswith("Harmonic") else None
    if isinstance(plain, type) and issubclass(plain, PreTrainedConfig) and plain.model_type in CONFIG_MAPPING_NAMES:
        return config_class(plain)
    if isinstance(plain, type) and issubclass(plain, PreTrainedModel) and is_supported(plain):
        config_class(plain.config_class)
        return model_class(plain)
    raise AttributeError(f"module 'harmax.hf' has no attribute {name!r}")


class LazyConfig:
    """Stands for the configurations of one harmonic type until the first of them is needed."""

    plain_type: str

    def __new__(cls, **settings: Any) -> Any:
        """Build a configuration."""
        return config_class(CONFIG_MAPPING[cls.plain_type])(**settings)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **settings: Any) -> Any:
        """Build a configuration from what a config.json holds."""
        return config_class(CONFIG_MAPPING[cls.plain_type]).from_dict(config_dict, **settings)

    @classmethod
    def from_pretrained(cls, *arguments: Any, **options: Any) -> Any:
        """Read a configuration from a folder."""
        return config_class(CONFIG_MAPPING[cls.plain_type]).from_pretrained(*arguments, **options)


def register_all() -> None:
    """Make the Auto classes of transformers know all harmonic types."""
    for name in CONFIG_MAPPING_NAMES:
        lazy: Any = type("LazyConfig", (LazyConfig,), {"plain_type": name, "__module__": __name__})
        CONFIG_MAPPING.register(PREFIX + name, lazy, exist_ok=True)
    config_class(GPT2Config)
