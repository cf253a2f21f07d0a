"""Run a model on a few tokens, or on one small image, to see where its head stands.

No list of class names would do: hundreds of models put the norm, the head and what follows it in places of their own.
"""

# T positions, D features, V classes

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from harmax.hf.kinds import kind_of, plain_class

TOKENS = 4
SIZE = 64
"""Side of an image for models that take any."""


class Trial(NamedTuple):
    """What a trial found."""

    norm: nn.Module | None
    """The norm whose output is the input of the head; None if something else stands between or instead."""


class Seen(NamedTuple):
    """The output of a module, and how often it had been changed in place by then."""

    module: nn.Module
    output: Tensor
    version: int


def try_model(model: Any, path: str) -> Trial:
    """Run a model and return what stands before its head; refuse a model that changes what its head returns.

    The head's output is exchanged for large random numbers. A model that scales or caps its logits would change them.
    """
    head, seen, inputs = model.get_submodule(path), list[Seen](), list[Tensor]()
    shown = list[Tensor]()

    def look(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            seen.append(Seen(module, output, output._version))

    def exchange(_: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
        inputs.append(arguments[0])
        shown.append(50 * torch.randn(output.shape, device=output.device).to(output.dtype))
        return shown[-1]

    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.no_grad())
        stack.enter_context(evaluating(model))
        for module in model.modules():
            hook = module.register_forward_hook(exchange if module is head else look)
            stack.callback(hook.remove)
        outputs = model(**tiny_input(model), return_dict=True)
    if len(shown) != 1:
        raise ValueError(
            f"`model` must call its head ({path}) once, got {len(shown)} calls in {type(model).__name__}; a head that "
            "is used in another way cannot be exchanged."
        )
    whole = inputs[0].shape[:-1].numel() == outputs.logits.shape[:-1].numel()
    if not is_part(outputs.logits, shown[0]) or not (whole or kind_of(plain_class(type(model))) == "classifier"):
        raise ValueError(
            f"`model` must use the output of its head ({path}) as it is, got a {type(model).__name__} that changes it, "
            "such as by scaling or soft-capping logits, or by taking a part of them; the probabilities of a harmonic "
            "head would not survive that."
        )
    return Trial(norm_before(inputs[0], seen))


def tiny_input(model: Any) -> dict[str, Any]:
    """Return the smallest sensible input of a model: tokens without a special meaning, or a black image."""
    config, device = model.config, next(model.parameters()).device
    name = model.main_input_name
    if name == "input_ids":
        text = config.get_text_config()
        ids = [getattr(text, key) for key in vars(text) if key.endswith("_token_id")]
        special = {one for own in ids for one in (own if isinstance(own, (list, tuple)) else [own])}
        plain = [token for token in range(min(text.vocab_size, 100)) if token not in special] or [0]
        tokens = (plain * TOKENS)[:TOKENS]
        cache = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
        return {name: torch.tensor([tokens], device=device), **cache}
    if name == "pixel_values":
        config = getattr(config, "vision_config", config)
        size = getattr(config, "image_size", None) or SIZE
        height, width = size if isinstance(size, (tuple, list)) else (size, size)
        shape = 1, getattr(config, "num_channels", 3), height, width
        return {name: torch.zeros(shape, device=device, dtype=model.dtype)}
    raise ValueError(
        f"`model` must take tokens or images (input_ids or pixel_values), got {type(model).__name__}, which takes "
        f"{name}; other inputs are not supported yet."
    )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Turn dropout off, and set every module back to what it was."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def is_part(logits: Tensor, shown: Tensor) -> bool:
    """Return whether every row of some logits is a row of what the head returned.

    >>> is_part(torch.tensor([[1.0, 2.0]]), torch.tensor([[[0.0, 1.0], [1.0, 2.0]]]))
    True
    """
    if logits.shape[-1] != shown.shape[-1]:
        return False
    rows, known = (v.float().flatten(0, -2).to(shown.device) for v in (logits, shown))
    return bool((rows[:, None] == known[None]).all(-1).any(-1).all())


def norm_before(input: Tensor, seen: list[Seen]) -> nn.Module | None:
    """Return the norm whose output is the input of the head, as it is or a part of it.

    Args:
        input: of the head, (..., D).
        seen: outputs of modules in the order of the calls.
    """
    storage = input.untyped_storage().data_ptr()
    for module, output, version in reversed(seen):
        if output.untyped_storage().data_ptr() != storage or output.shape[-1] != input.shape[-1]:
            continue
        if output._version != version:
            return None
        if "norm" in type(module).__name__.lower():
            return module
    return None
