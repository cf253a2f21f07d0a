"""Which models of transformers can have a harmonic head, and why others cannot."""

from typing import Any

import torch
from torch import Tensor, nn

from harmax.errors import needs
from harmax.heads.harmonic import HarmonicHead

with needs("hf"):
    from transformers.models.auto import modeling_auto as auto

TABLES = {
    "causal": (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,),
    "masked": (auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,),
    "classifier": (
        auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    ),
}
"""What a model does, and where transformers lists such models."""

SUPPORTED = "causal and masked language models, sequence classifiers and image classifiers of transformers"

UNSHIFTED = {
    "BartForCausalLM",
    "BigBirdPegasusForCausalLM",
    "BlenderbotForCausalLM",
    "BlenderbotSmallForCausalLM",
    "CpmAntForCausalLM",
    "MBartForCausalLM",
    "MarianForCausalLM",
    "MvpForCausalLM",
    "PLBartForCausalLM",
    "PegasusForCausalLM",
    "TrOCRForCausalLM",
    "WhisperForCausalLM",
    "XLMWithLMHeadModel",
    "XLNetLMHeadModel",
}
"""Causal language models whose labels are those of each position, although the others of transformers shift them."""

REASONS = {
    "ForTokenClassification": "it gives every token a label",
    "ForQuestionAnswering": "its outputs are the ends of a span",
    "ForConditionalGeneration": "it generates from another input",
    "ForMultipleChoice": "it compares scores of different inputs",
    "ForPreTraining": "it has two heads",
}
"""Ends of class names, and why such a model is not supported."""

TRANSFORMS = {
    "final_logit_softcapping": (None, 0),
    "logits_soft_cap": (None, 0),
    "output_logit_soft_cap": (None, 0),
    "softcap": (None, 0),
    "logits_scaling": (None, 1),
    "logit_scale": (None, 1),
    "lm_head_multiplier": (None, 1),
    "output_multiplier": (None, 1),
}
"""Settings of transformers that change logits after the head, with the values that change nothing."""


def kind_of(plain: type) -> str:
    """Return what a class of transformers does; refuse one that cannot have a harmonic head.

    >>> from transformers import LlamaForCausalLM
    >>> kind_of(LlamaForCausalLM)
    'causal'
    """
    name = plain.__name__
    if reason := next((REASONS[end] for end in REASONS if name.endswith(end)), None):
        raise ValueError(f"`model` must be one of the {SUPPORTED}, got {name}: {reason}; train it with its own head.")
    for kind, tables in TABLES.items():
        for table in tables:
            if any(name in ((names,) if isinstance(names, str) else names) for names in table.values()):
                return kind
    raise ValueError(
        f"`model` must be one of the {SUPPORTED}, got {name}; for another model use harmax.replace_head, and save its "
        "state_dict."
    )


def shifts_labels(plain: type) -> bool:
    """Return whether positions of a model of transformers predict the next label, and not their own.

    >>> from transformers import BertForMaskedLM, LlamaForCausalLM, XLNetLMHeadModel
    >>> [shifts_labels(plain) for plain in (LlamaForCausalLM, BertForMaskedLM, XLNetLMHeadModel)]
    [True, False, False]
    """
    return kind_of(plain) == "causal" and plain.__name__ not in UNSHIFTED


def check_config(plain: type, config: Any) -> None:
    """Refuse a configuration whose model would not use log-probabilities as they are."""
    name = plain.__name__
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(
            f"`model` must not be a sequence-to-sequence model, got {name}; these are not supported yet, so train it "
            "with its own head."
        )
    for key, neutral in TRANSFORMS.items():
        value = getattr(config.get_text_config(), key, None)
        if value not in neutral:
            raise ValueError(
                f"`model` must use the output of its head as it is, got {name} with {key}={value}, which would change "
                f"probabilities; set config.{key} = {neutral[-1]} and train it so, or choose another model."
            )
    if kind_of(plain_class(plain)) == "classifier":
        check_problem(config, None)


def plain_class(model: type) -> type:
    """Return the class of transformers that a harmonic class extends, or the class itself."""
    return next(base for base in model.__mro__ if base.__module__.startswith("transformers."))


def check_problem(config: Any, labels: Tensor | None) -> None:
    """Refuse a classifier that does not choose one class."""
    problem, classes = config.problem_type, config.num_labels
    if problem in (None, "single_label_classification") and classes == 1:
        problem = "regression"
    elif problem is None and labels is not None and labels.dtype not in (torch.int64, torch.int32):
        problem = f"multi_label_classification, because labels are {labels.dtype}"
    if problem not in (None, "single_label_classification"):
        raise ValueError(
            f"a harmonic classifier must choose one class (problem_type single_label_classification, two labels or "
            f"more, labels int64), got {problem}; its head gives probabilities that add up to 1, so use the model of "
            "transformers for other problems."
        )


def head_path(model: Any) -> str:
    """Return the dotted name of the module at the end of a model."""
    modules = dict(model.named_modules())
    embeddings = model.get_output_embeddings()
    if embeddings is not None and kind_of(plain_class(type(model))) != "classifier":
        return next(name for name, module in modules.items() if module is embeddings)
    body = f"{model.base_model_prefix}."
    ends = [
        name
        for name, module in modules.items()
        if not name.startswith(body) and getattr(module, "out_features", None) == model.config.num_labels
    ]
    if not ends or embeddings is not None:
        raise ValueError(no_linear(model, "none with one output per label"))
    return ends[-1]


def the_linear(model: nn.Module, path: str) -> nn.Linear:
    """Return the Linear at a dotted name; refuse anything else that may stand there."""
    head: Any = model.get_submodule(path)
    if isinstance(head, HarmonicHead):
        raise ValueError(
            f"`model` must have a Linear at its end, got a head that is harmonic already (`{path}`, "
            f"{head.extra_repr()}); to change its exponent, start again from the model of transformers."
        )
    quantized = not head.weight.is_floating_point() if isinstance(getattr(head, "weight", None), Tensor) else False
    if type(head) is nn.Linear and not quantized and type(head.weight.data) is Tensor:
        return head
    raise ValueError(no_linear(model, f"{path}, a {type(head).__module__.partition('.')[0]} {type(head).__name__}"))


def no_linear(model: nn.Module, found: str) -> str:
    """Return the error message for a model without a plain Linear at its end."""
    return (
        f"`model` must have a plain nn.Linear at its end, got {type(model).__name__} with {found}; load it without "
        "quantization, and merge adapters first."
    )
