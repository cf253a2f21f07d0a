"""The Triton implementation, in its interpreter where there is no GPU: against float64, and against eager code."""

import pytest
import torch
from hypothesis import assume, given, settings

from harmax import LossOptions, harmonic_loss
from harmax.kernels import MODES, autograd
from harmax.kernels.problem import Block, Problem, Wanted
from harmax.kernels.triton import modes, support, tiles
from harmax.kernels.triton.engine import Engine
from oracle import HITS, assert_matches, assert_right_next_to_a_center, brute_force, problems, put_on_a_center
from small_blocks import DEVICE, draw, error, small_block, small_blocks

__all__ = ["small_blocks"]  # a fixture

# The interpreter cuts bfloat16 off where a GPU rounds it.
GRADIENT_ERROR = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 1e-2}

every_mode = pytest.mark.parametrize("mode", MODES)


def run(x, w, target, *, mode="fast", **options):
    x, w = (tensor.detach().to(DEVICE, copy=True).requires_grad_() for tensor in (x, w))
    options = {key: value.to(DEVICE) if isinstance(value, torch.Tensor) else value for key, value in options.items()}
    loss = harmonic_loss(x, w, target.to(DEVICE), impl="triton", options=LossOptions(mode=mode), **options)
    dx, dw = torch.autograd.grad(loss.sum(), (x, w))
    assert (dx.dtype, dw.dtype) == (x.dtype, w.dtype)
    return loss.detach().cpu(), dx.cpu(), dw.cpu()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(problem=problems(dtypes=(torch.float32,), probabilities=False))
def test_any_problem_in_float32_matches_float64(problem):
    x, w, target, options = problem
    assume((x.double()[:, None] - w.double()).square().sum(-1).min() > 0)
    want = brute_force(x, w, target, **options)
    loss, dx, dw = run(x, w, target, **options)
    assert_matches(want, loss, dx, dw, options=options, unit=1e-6)


@every_mode
@pytest.mark.parametrize("dtype", GRADIENT_ERROR)
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1, "reduction": "none"}, {"reduction": "sum"}])
def test_every_mode_and_dtype(mode, dtype, options):
    x, w, target = draw(dtype=dtype)
    target[::7] = -100
    options = {"exponent": 5.0, "softening": 0.2, "weight": torch.rand(70) + 0.5, **options}
    want = brute_force(x, w, target, **options)
    loss, dx, dw = run(x, w, target, mode=mode, **options)
    assert loss.dtype == torch.float32
    assert error(loss, want.loss) < (1e-6 if dtype == torch.float32 else 1e-4)
    assert error(dx, want.dx) < GRADIENT_ERROR[dtype]
    assert error(dw, want.dw) < GRADIENT_ERROR[dtype]


@every_mode
def test_half_precision_with_float32_centers(mode):
    x, w, target = draw(classes=90)
    want = brute_force(x.bfloat16(), w, target, exponent=4.5)
    loss, dx, dw = run(x.bfloat16(), w, target, mode=mode, exponent=4.5)
    assert error(loss, want.loss) < 1e-4
    assert error(dx, want.dx) < 1e-2
    assert error(dw, want.dw) < 1e-2


@pytest.mark.parametrize("exponent", [0.5, 2.0, 28.0, 512.0])
@pytest.mark.parametrize("gap", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("right", [True, False])
def test_next_to_a_center_matches_mpmath(exponent, gap, right):
    assert_right_next_to_a_center(run, exponent, gap, right)


@pytest.mark.parametrize(
    ("mode", "exponent"), [("fast", 0.5), ("fast", 2.0), ("fast", 300.0), ("balanced", 2.0), ("lean", 2.0)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("hit", HITS)
def test_an_exact_hit_is_as_in_eager_code(mode, exponent, dtype, hit):
    x, w, target = draw(rows=4, features=8, classes=40, dtype=dtype)
    target[0] = 2
    put_on_a_center(x, w, hit)
    loss, dx, dw = run(x, w, target, mode=mode, exponent=exponent, reduction="none")
    wide = [tensor.float().requires_grad_() for tensor in (x, w)]
    want = harmonic_loss(*wide, target, exponent=exponent, reduction="none", impl="eager")
    grads = torch.autograd.grad(want.sum(), wide)
    # A logarithm of float32, rounded, times the exponent.
    tolerance = 1e-5 + 1e-7 * exponent if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(loss, want.detach(), rtol=tolerance, atol=1e-30)
    for got, right in zip((dx, dw), grads, strict=True):
        assert got.isfinite().all()
        if right.isfinite().all() and right.norm() > 0:
            assert error(got, right) < tolerance


@pytest.mark.parametrize("power", [-20, -10, 10, 15])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scaling_everything_changes_nothing(power, dtype):
    x, w, target = draw(dtype=dtype)
    want = run(x, w, target, exponent=7.0)
    got = run(x * 2.0**power, w * 2.0**power, target, exponent=7.0)
    torch.testing.assert_close(got[0], want[0], rtol=1e-6, atol=0)
    for one, other in zip(got[1:], want[1:], strict=True):
        assert error(one.double() * 2.0**power, other) < 1e-6


@every_mode
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_common_shift_changes_nothing(mode, dtype):
    x, w, target = draw(dtype=torch.bfloat16)
    x, w = ((tensor * 4).round() for tensor in (x, w))  # whole numbers, which a shift does not round
    want = brute_force(x, w, target, exponent=3.0)
    _, dx, dw = run((x + 64).to(dtype), (w + 64).to(dtype), target, mode=mode, exponent=3.0)
    assert error(dx, want.dx) < (1e-5 if dtype == torch.float32 else 1e-2)
    assert error(dw, want.dw) < (1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("exponent", [4.0, 28.0, 512.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_an_ignored_row_next_to_a_center_adds_nothing(exponent, smoothing):
    x, w, target = draw(rows=20, features=8)
    x[0], x[1], x[2] = w[0], w[0] + 1e-2 * x[1], 0.8 * w[0]
    target[:3] = -100
    options = {"exponent": exponent, "label_smoothing": smoothing}
    want = brute_force(x[3:], w, target[3:], **options)
    loss, dx, dw = run(x, w, target, **options)
    assert error(loss, want.loss) < 1e-5
    assert not dx[:3].any()
    assert error(dx[3:], want.dx) < 1e-4
    assert error(dw, want.dw) < 1e-4


def test_padding_rows_of_zeros_are_hits():
    x, w, target = draw(rows=3)
    x[0], w[5], target[0] = 0.0, 0.0, 7
    loss, *_ = run(x, w, target, exponent=3.0, reduction="none")
    torch.testing.assert_close(loss, harmonic_loss(x, w, target, exponent=3.0, reduction="none", impl="eager"))


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # the interpreter's
@pytest.mark.parametrize("place", ["input", "target", "other"])
def test_a_nan_reaches_the_loss(place):
    x, w, target = draw(rows=3)
    {"input": x[1], "target": w[target[1]], "other": w[(target[1] + 1) % 70]}[place][3] = torch.nan
    loss, dx, _ = run(x, w, target, exponent=3.0, reduction="none")
    assert loss[1].isnan()
    assert dx[1].isnan().any()


def test_a_target_that_is_no_class_is_not_a_loss():
    x, w, target = draw(rows=3)
    target[1] = 70
    options = LossOptions(check_targets=False)
    x, w, target = x.to(DEVICE).requires_grad_(), w.to(DEVICE), target.to(DEVICE)
    loss = harmonic_loss(x, w, target, reduction="none", impl="triton", options=options)
    assert loss.isnan().tolist() == [False, True, False]
    assert torch.autograd.grad(loss[0], x)[0].isfinite().all()


@pytest.mark.parametrize(("scale", "exponent"), [(0.02, 128.0), (0.02, 256.0), (1.0, 11.0)])
def test_the_gradient_of_a_language_models_head(scale, exponent):
    """Inputs of norm sqrt(D) and small centers: sum(G) x and the true gradient differ by orders of magnitude."""
    generator = torch.Generator().manual_seed(0)
    w = scale * torch.randn(200, 128, generator=generator)
    target = torch.randint(200, (24,), generator=generator)
    x = torch.nn.functional.layer_norm(torch.randn(24, 128, generator=generator) + 0.2 * w[target] / scale, (128,))
    x, w = x.bfloat16(), w.bfloat16()
    want = brute_force(x, w, target, exponent=exponent)
    _, dx, dw = run(x, w, target, exponent=exponent)
    assert error(dx, want.dx) < 1e-2
    assert error(dw, want.dw) < 2e-2


def test_more_near_pairs_than_there_are_slots():
    x, w, target = draw(rows=5)
    w[10:40] = w[3] + 1e-2 * w[10:40]
    x[:] = w[3] + 1e-2 * x
    want = brute_force(x, w, target, exponent=3.0)
    loss, dx, dw = run(x, w, target, exponent=3.0)
    assert error(loss, want.loss) < 1e-6
    assert error(dx, want.dx) < 1e-4
    assert error(dw, want.dw) < 1e-4


def test_statistics_and_the_exponents_gradient():
    x, w, target = draw()
    target[5], target[6] = (x[5] - w).norm(dim=1).argmin(), -100
    results = []
    for impl, device in (("eager", "cpu"), ("triton", DEVICE)):
        exponent = torch.tensor(4.0, device=device, requires_grad=True)
        output = harmonic_loss(
            x.to(device), w.to(device), target.to(device), exponent=exponent, impl=impl, return_stats=True
        )
        output.loss.backward()
        results.append((output.loss.detach().cpu(), output.logsumexp.cpu(), exponent.grad.cpu(), output.hit.cpu()))
    torch.testing.assert_close(results[1][:3], results[0][:3])
    assert torch.equal(results[1][3], results[0][3])
    assert results[0][3].any()


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 1025, 5), (33, 3, 257)])
def test_odd_shapes(shape):
    rows, features, classes = shape
    x, w, target = draw(rows, features, classes)
    want = brute_force(x, w, target, exponent=2.0, reduction="sum")
    loss, dx, dw = run(x, w, target, exponent=2.0, reduction="sum")
    torch.testing.assert_close(loss.double(), want.loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(dx.double(), want.dx, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dw.double(), want.dw, rtol=1e-4, atol=1e-5)


def test_no_rows():
    x, w, target = draw(rows=0)
    loss, dx, dw = run(x, w, target, reduction="sum")
    assert (loss.item(), dx.shape, dw.any().item()) == (0.0, x.shape, False)
    assert run(x, w, target)[0].isnan()


def test_non_contiguous_input():
    x, w, target = draw()
    wide = torch.cat([x, x], 1)[:, : x.shape[1]]
    for a, b in ((x.T.contiguous().T, w.T.contiguous().T), (wide, w)):
        for got, want in zip(run(a, b, target), run(x, w, target), strict=True):
            torch.testing.assert_close(got, want)


def test_the_same_bits_every_time():
    x, w, target = draw(dtype=torch.bfloat16)
    x[:9] = w[:9]
    for got, want in zip(run(x, w, target), run(x, w, target), strict=True):
        assert torch.equal(got, want)


def test_a_scaled_loss_scales_its_gradients():
    x, w, target = (tensor.to(DEVICE) for tensor in draw(dtype=torch.bfloat16))
    x.requires_grad_()
    want = torch.autograd.grad(harmonic_loss(x, w, target, impl="triton"), x)[0]
    loss = harmonic_loss(x, w, target, impl="triton")
    assert torch.equal(torch.autograd.grad(4 * loss, x, retain_graph=True)[0], 4 * want)
    assert torch.equal(torch.autograd.grad(loss / 2, x)[0], want / 2)


def test_only_what_is_wanted_is_made():
    x, w, target = (tensor.to(DEVICE) for tensor in draw())
    problem = Problem(x, w, target, torch.tensor(2.0, device=DEVICE), 0.0, None, -100, 0.0, "mean")
    scale = torch.ones(len(x), device=DEVICE)
    block = Block(len(x), len(w))
    result = Engine(problem, Wanted(False, False, False), lambda: scale, block).run()
    assert (result.dx_BD.numel(), result.dw_VD.numel()) == (0, 0)
    result = Engine(problem, Wanted(True, False, False), lambda: scale, block).run()
    assert (result.dx_BD.shape, result.dw_VD.numel()) == (x.shape, 0)


def test_operator_passes_opcheck():
    x, w, target = (tensor.to(DEVICE) for tensor in draw(6, 5, 4, dtype=torch.bfloat16))
    x, w = x.requires_grad_(), w.requires_grad_()
    exponent = torch.tensor(2.0, device=DEVICE, requires_grad=True)
    for reduction in ("mean", "none"):
        arguments = (x, w, target, exponent, None, 0.1, -100, 0.1, reduction, "triton", 6, 4, True, True, True)
        torch.library.opcheck(autograd._loss_op, arguments)


def test_compiles_without_a_break():
    x, w, target = (tensor.to(DEVICE) for tensor in draw())
    x, w = x.requires_grad_(), w.requires_grad_()

    def step(x, w):
        return harmonic_loss(2 * x, w, target, impl="triton")

    want = torch.autograd.grad(step(x, w), (x, w))
    got = torch.autograd.grad(torch.compile(step, fullgraph=True)(x, w), (x, w))
    torch.testing.assert_close(got, want)


def test_without_a_mode_memory_decides(monkeypatch):
    x, w, target = (tensor.to(DEVICE) for tensor in draw())
    free = {mode: int(1.2 * modes.peak_bytes(mode, *x.shape, len(w), itemsize=4)) for mode in MODES}
    assert free["fast"] > free["balanced"]
    asked = []

    def block(mode, tokens, features, classes):
        asked.append(mode)
        return small_block(mode, tokens, features, classes)

    monkeypatch.setattr(modes, "block", block)
    for mode in ("fast", "balanced"):
        monkeypatch.setattr(modes, "free_bytes", lambda device, mode=mode: free[mode])
        loss = harmonic_loss(x, w, target, impl="triton")
        assert asked[-1] == mode
        torch.testing.assert_close(loss, harmonic_loss(x, w, target, impl="eager"))


def test_bad_input(monkeypatch):
    x, w, target = (tensor.to(DEVICE) for tensor in draw())
    with pytest.raises(TypeError, match=r"must be float32, bfloat16 or float16 with impl='triton', got torch\.float64"):
        harmonic_loss(x.double(), w.double(), target, impl="triton")
    with pytest.raises(TypeError, match="must be class indices with impl='triton', got class probabilities"):
        harmonic_loss(x, w, torch.rand(40, 70, device=DEVICE), impl="triton")
    with pytest.raises(ValueError, match="`mode` must be one of fast, balanced, lean, got 'quick'"):
        LossOptions(mode="quick")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RuntimeError, match="impl='triton' needs a CUDA device, got cpu; move the tensors to a GPU"):
        harmonic_loss(x.cpu(), w.cpu(), target.cpu(), impl="triton")
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert support.why_not(torch.device("cuda")) == "an NVIDIA GPU, got ROCm 6.4; there is no remedy yet"
    monkeypatch.setattr(support, "INSTALLED", "3.1.0")
    monkeypatch.setattr(support, "RELEASE", (3, 1))
    with pytest.raises(RuntimeError, match=r"needs Triton 3.6 or newer, got 3.1.0; pip install -U triton"):
        harmonic_loss(x, w, target, impl="triton")
    monkeypatch.setattr(support, "INSTALLED", None)
    with pytest.raises(RuntimeError, match="needs Triton, which is not installed; pip install triton"):
        harmonic_loss(x, w, target, impl="triton")


@pytest.mark.slow
def test_many_tiles_do_not_wear_a_sum_down(monkeypatch):
    monkeypatch.setattr(tiles, "PROGRAMS", 1)
    x, w, target = draw(rows=6, features=8, classes=3000)
    want = brute_force(x, w, target, exponent=256.0, reduction="none")
    loss, dx, _ = run(x, w, target, exponent=256.0, reduction="none")
    assert error(loss, want.loss) < 3e-5
    assert error(dx, want.dx) < 1e-4


@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float32), (torch.float16, torch.float16)])
@pytest.mark.parametrize("distance", [0.02, 0.2])
def test_next_to_a_center_in_dtypes_that_must_be_rounded(dtypes, distance):
    x, w, _ = draw(rows=24, features=32)
    x = w[:24] + distance * x * (w[:24].norm(dim=1) / x.norm(dim=1))[:, None]
    target = torch.arange(24).roll(1)
    x, w = (v.to(dtype) for v, dtype in zip((x, w), dtypes, strict=True))
    want = brute_force(x, w, target, exponent=6.0)
    loss, dx, dw = run(x, w, target, exponent=6.0)
    assert error(loss, want.loss) < 1e-4
    assert max(error(dx, want.dx), error(dw, want.dw)) < 6e-3


@pytest.mark.slow
def test_a_scaled_loss_keeps_small_gradients_in_float16(monkeypatch):
    # Large tiles: with small ones, which others test, the interpreter takes long.
    monkeypatch.setattr(tiles, "TILE", {"BM": 64, "BN": 64, "num_warps": 4})
    x, w, target = draw(rows=256, features=16, classes=300, dtype=torch.float16)
    x = w[target[:256]] + 0.01 * x
    x, w = (v.to(DEVICE).requires_grad_() for v in (x, w))
    loss = 65536.0 * harmonic_loss(x, w, target.to(DEVICE), exponent=4.0, impl="triton")
    wide = [v.detach().float().requires_grad_() for v in (x, w)]
    want = torch.autograd.grad(65536.0 * harmonic_loss(*wide, target.to(DEVICE), exponent=4.0, impl="eager"), wide)
    for got, right in zip(torch.autograd.grad(loss, (x, w)), want, strict=True):
        assert error(got, right) < 6e-3


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # the interpreter's
def test_a_row_of_nan_hits_nothing():
    x, w, target = draw(rows=3)
    x[1] = torch.nan
    output = harmonic_loss(x.to(DEVICE), w.to(DEVICE), target.to(DEVICE), impl="triton", return_stats=True)
    assert not output.hit[1]


def test_everything_must_be_on_one_device():
    x, w, target = (v.to(DEVICE) for v in draw())
    with pytest.raises(ValueError, match="`weight` must be on the device of `input`"):
        harmonic_loss(x, w, target, weight=torch.ones(70, device="meta"), impl="triton")
