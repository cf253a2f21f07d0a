"""Many models as one: their parameters are stacked, and smaller ones are padded with zeros."""

# S runs

import re
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from harmax.environment import choose_device
from harmax.heads import CenterHead
from harmax_lab.losses import LossHead

Build = Callable[[], nn.Module]


class Ensemble:
    """Independent models of one kind, which `fit` trains as one. Each of them stays an ordinary module.

    Args:
        build: a function that makes a model, or a sequence of such functions, one per run. A model takes tokens (B, T)
            and a key (a 0-d int64 tensor of `harmax_lab.models.random`, or None for no dropout) and returns logits
            (B, V). Its `embedding` is a parameter (V, D). The models of an ensemble may differ only in V.
        seeds: one per run, for initialization, batch order and dropout.
        device: where to train; None: on a GPU if there is one.
        dtype: of the parameters; None keeps that of the models.

    >>> from harmax_lab.models import MLP
    >>> ensemble = Ensemble(lambda: MLP(7, 2), seeds=[0, 1, 2])
    >>> len(ensemble), ensemble[1].embedding.shape
    (3, torch.Size([7, 16]))
    """

    def __init__(
        self,
        build: Build | Sequence[Build],
        seeds: Sequence[int],
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not len(seeds) or any(seed < 0 or seed != int(seed) for seed in seeds):
            raise ValueError(f"`seeds` must be one or more non-negative integers, got {list(seeds)}; give one per run.")
        builds = build if isinstance(build, Sequence) else [build] * len(seeds)
        if len(builds) != len(seeds):
            raise ValueError(f"`build` must be one function or one per seed ({len(seeds)}), got {len(builds)}.")
        self.seeds = [int(seed) for seed in seeds]
        self.device = torch.device(choose_device(None if device is None else str(device)))
        self.models: list[nn.Module] = []
        # Runs must not depend on numbers drawn before, and must not change numbers drawn later.
        with torch.random.fork_rng(devices=[]):
            for seed, make in zip(self.seeds, builds, strict=True):
                # torch.manual_seed would seed GPUs too.
                torch.default_generator.manual_seed(seed)
                self.models.append(make().to(dtype=dtype))
        for model in self.models:
            check_model(model)
        if len({id(parameter) for model in self.models for parameter in model.parameters()}) < sum(
            len(list(model.parameters())) for model in self.models
        ):
            raise ValueError(
                "`build` must make a new model at every call, got models that share parameters; build the model inside "
                "the function."
            )
        first = kind(self.models[0])
        for model in self.models:
            if (found := kind(model)) != first:
                raise ValueError(
                    "`build` must give models of one kind, which may differ only in their vocabulary, got "
                    f"{sorted(set(found) ^ set(first))}; put others into separate ensembles (exponents into `Plan`)."
                )

    def __len__(self) -> int:
        return len(self.models)

    def __getitem__(self, run: int) -> nn.Module:
        return self.models[run]

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.models)

    def part(self, runs: Sequence[int]) -> "Ensemble":
        """Return an ensemble of some of the runs. The models are shared, not copied."""
        part = object.__new__(Ensemble)
        part.seeds, part.device = [self.seeds[run] for run in runs], self.device
        part.models = [self.models[run] for run in runs]
        return part

    @property
    def largest(self) -> nn.Module:
        """The model with the most parameters. The others fit into its shapes."""
        return max(self.models, key=lambda model: sum(parameter.numel() for parameter in model.parameters()))

    def shapes(self) -> dict[str, torch.Size]:
        """Return the shape of each stacked parameter, (S, ...)."""
        found = [dict(model.named_parameters()) for model in self.models]
        sizes = {name: zip(*(parameters[name].shape for parameters in found), strict=True) for name in found[0]}
        return {name: torch.Size([len(found), *map(max, own)]) for name, own in sizes.items()}

    def stacked(self) -> dict[str, Tensor]:
        """Return the parameters of all runs on the device, (S, ...), padded with zeros."""
        stacks = {}
        for name, shape in self.shapes().items():
            stack = torch.zeros(shape, dtype=self.dtype)
            for run, model in enumerate(self.models):
                parameter = model.get_parameter(name).detach()
                stack[run][tuple(map(slice, parameter.shape))] = parameter
            stacks[name] = stack.to(self.device)
        return stacks

    @property
    def dtype(self) -> torch.dtype:
        """The parameters' type."""
        return next(self.models[0].parameters()).dtype

    @torch.no_grad()
    def load(self, stacks: dict[str, Tensor]) -> None:
        """Write stacked parameters back into the models."""
        for name, stack in stacks.items():
            rows = stack.cpu()
            for run, model in enumerate(self.models):
                parameter = model.get_parameter(name)
                parameter.copy_(rows[run][tuple(map(slice, parameter.shape))])


def check_model(model: nn.Module) -> None:
    """Raise if a model cannot be part of an ensemble."""
    names = dict(model.named_parameters())
    if "embedding" not in names or names["embedding"].dim() != 2:
        raise ValueError(
            f"`build` must give models whose `embedding` is a parameter (V, D), got {type(model).__name__} with "
            f"{', '.join(names)}; use an nn.Parameter and `harmax_lab.models.embedding.embed`."
        )
    if any(True for _ in model.buffers()):
        raise ValueError("`build` must give models without buffers, got some: running averages cannot be stacked.")
    frozen = [name for name, parameter in names.items() if not parameter.requires_grad]
    if frozen:
        raise ValueError(f"`build` must give models that train all their parameters, got {frozen} frozen.")
    for name, module in model.named_modules():
        if isinstance(module, LossHead) and module.reads_out and module.weight is names["embedding"]:
            raise ValueError(
                f"`build` must give models whose {name}, a {type(module).__name__}, is not tied to the embedding, got "
                "one that is: a weight that only reads out must not train the network; build them with tied=False."
            )
    types = {parameter.dtype for parameter in names.values()}
    if not types <= {torch.float32} and not types <= {torch.float64}:
        raise TypeError(f"`build` must give models in float32 or in float64, got {sorted(map(str, types))}.")


def kind(model: nn.Module) -> tuple[str, ...]:
    """Return what the models of an ensemble must have in common, as texts: parameters, modules, and their settings.

    Sizes that equal the vocabulary are left out, because rows of zeros and a mask over the classes make up for them. In
    other sizes zeros would change the result: a normalization would count them, and f(0) need not be 0.
    """
    tokens = len(model.get_parameter("embedding"))

    def settings(module: nn.Module) -> str:
        plain = {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, bool | int | float | str) and name != "training" and value != tokens
        }
        words = re.sub(rf"out_features={tokens}\b", "", module.extra_repr())
        return f"{type(module).__name__} {plain} {words}"

    shapes = (
        f"{name} {['V' if size == tokens else size for size in parameter.shape]}"
        for name, parameter in model.named_parameters()
    )
    return *shapes, *(f"{name}: {settings(module)}" for name, module in model.named_modules())


def exponent_names(model: nn.Module) -> list[str]:
    """Return the names of the exponents of a model's harmonic heads; raise ValueError if there are none."""
    names = [
        f"{name}.exponent" if name else "exponent"
        for name, module in model.named_modules()
        if isinstance(module, CenterHead) and isinstance(module.exponent, float | int)
    ]
    if not names:
        raise ValueError("`exponent` must be None for a model without a harmonic head of fixed exponent, got numbers.")
    return names


def open_exponents(model: nn.Module) -> None:
    """Turn the exponents of harmonic heads from numbers into buffers, which `functional_call` can replace."""
    for name in exponent_names(model):
        head = model.get_submodule(name.rpartition(".")[0])
        exponent = head.exponent
        del head.exponent
        head.register_buffer("exponent", torch.as_tensor(exponent), persistent=False)
