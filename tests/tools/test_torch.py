"""Tools of torch itself: compile, checkpointing, accumulation, parametrizations, pruning, fusion, hooks."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import fusion, parametrizations, prune
from torch.utils.checkpoint import checkpoint

from harmax import HarmonicHead
from tools.plain import assert_harmonic

FEATURES = 3 * torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
TARGET = torch.tensor([0, 1, 2, 3, 4, 0])
DEPRECATED = pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")


def head(scale: float | None = 0.5) -> HarmonicHead:
    torch.manual_seed(0)
    return HarmonicHead(16, 5, exponent=5.0, scale=scale, prior=True)


def step(call: Callable[..., Tensor], model: nn.Module) -> tuple[Tensor, ...]:
    x = FEATURES.clone().requires_grad_()
    loss = call(x, TARGET)
    return loss, *torch.autograd.grad(loss, (x, *model.parameters()))


def assert_same(got: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> None:
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("scale", [0.5, None], ids=["known", "unknown"])
def test_compile_computes_what_eager_computes(scale: float | None) -> None:
    torch.compiler.reset()
    plain, compiled = head(scale), head(scale)
    call = torch.compile(compiled, fullgraph=scale is not None, backend="aot_eager")
    for _ in range(2):
        assert_same(step(call, compiled), step(plain, plain))
    assert compiled.scale == plain.scale is not None


def test_compile_of_a_whole_graph_asks_for_the_scale() -> None:
    torch.compiler.reset()
    model = head(None)
    call = torch.compile(model, fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError, match=r"must know its scale before .* call head\.find_scale"):
        call(FEATURES, TARGET)
    model.find_scale(FEATURES)
    torch.testing.assert_close(call(FEATURES, TARGET), model(FEATURES, TARGET))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_around_the_head_finds_one_scale(reentrant: bool) -> None:
    plain, checkpointed = head(None), head(None)

    def call(*arguments: Tensor) -> Tensor:
        return checkpoint(checkpointed, *arguments, use_reentrant=reentrant)

    for model, function in ((plain, plain), (checkpointed, call)):
        function(FEATURES.clone().requires_grad_(), TARGET).backward()
        assert model.scale == 0.0625
    torch.testing.assert_close(checkpointed.weight.grad, plain.weight.grad)


def test_accumulated_gradients_are_those_of_the_whole_batch() -> None:
    whole, parts = head(), head()
    whole(FEATURES, TARGET).backward()
    for rows in range(0, 6, 2):
        (parts(FEATURES[rows : rows + 2], TARGET[rows : rows + 2], reduction="sum") / 6).backward()
    torch.testing.assert_close(parts.weight.grad, whole.weight.grad)
    torch.testing.assert_close(parts.prior.grad, whole.prior.grad)


def test_a_functional_call_takes_its_own_parameters() -> None:
    model, other = head(), head()
    other.weight.data.neg_()
    got = torch.func.functional_call(model, dict(other.named_parameters()), (FEATURES, TARGET))
    torch.testing.assert_close(got, other(FEATURES, TARGET))
    gradients = torch.func.grad(lambda p: torch.func.functional_call(model, p, (FEATURES, TARGET)))(
        dict(other.named_parameters())
    )
    other(FEATURES, TARGET).backward()
    torch.testing.assert_close(gradients["weight"], other.weight.grad)


def test_members_of_an_ensemble_must_share_their_settings() -> None:
    def call(members: list[HarmonicHead]) -> Tensor:
        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
            return torch.func.functional_call(members[0], (parameters, buffers), (FEATURES,))

        return torch.vmap(one)(*torch.func.stack_module_state(members))

    members = [head(), head()]
    members[1].weight.data.neg_()
    torch.testing.assert_close(call(members), torch.stack([member(FEATURES) for member in members]))
    with pytest.raises(ValueError, match=r"got scale=0\.25 in the buffer"):
        call([head(), head(0.25)])
    with pytest.raises(ValueError, match="got a scale in the buffer"):
        call([head(None), head(0.25)])


def test_a_functional_gradient_says_that_it_cannot_find_the_scale() -> None:
    model = head(None)
    with pytest.warns(UserWarning, match=r"must be found from a real batch.*call head\.find_scale"):
        torch.func.grad(lambda p: torch.func.functional_call(model, p, (FEATURES, TARGET)))(
            dict(model.named_parameters())
        )


CHANGES = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "old weight_norm": nn.utils.weight_norm,
    "old spectral_norm": nn.utils.spectral_norm,
    "prune": lambda module: prune.l1_unstructured(module, "weight", 0.3),
}


@DEPRECATED
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_weight_is_what_distances_are_taken_to(change: Callable[[nn.Module], object]) -> None:
    model = head()
    before = model.weight.detach().clone()
    change(model)
    for parameter in model.parameters():
        parameter.data *= 1.5
    model.eval()  # a spectral norm takes a step of its own in training
    model(FEATURES)
    assert not torch.allclose(model.weight, before)
    assert_harmonic(FEATURES, model)
    step(model.train(), model)
    back = head()
    with pytest.raises(RuntimeError, match="Missing key"):
        back.load_state_dict(model.state_dict())
    change(back)
    back.load_state_dict(model.state_dict())
    torch.testing.assert_close(back.eval()(FEATURES), model.eval()(FEATURES))


def test_a_norm_after_the_head_cannot_be_fused_into_it() -> None:
    with pytest.raises(AttributeError, match="no attribute 'bias'"):
        fusion.fuse_linear_bn_eval(head().eval(), nn.BatchNorm1d(5).eval())


def test_hooks_see_and_change_what_passes() -> None:
    model, seen = head(), []
    model.register_forward_pre_hook(lambda module, arguments: (arguments[0] * 2, *arguments[1:]))
    model.register_forward_hook(lambda module, arguments, output: seen.append(output))
    model.register_full_backward_hook(lambda module, inputs, outputs: seen.append(inputs[0]))
    x = FEATURES.clone().requires_grad_()
    loss = model(x, TARGET)
    loss.backward()
    torch.testing.assert_close(loss, head()(2 * FEATURES, TARGET))
    assert seen[0] == loss
    torch.testing.assert_close(2 * seen[1], x.grad)
