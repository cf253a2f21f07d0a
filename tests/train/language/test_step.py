"""What makes a step fast must not change it: whole graphs, causal attention without a mask, batches read ahead."""

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from harmax.data.text import TokenLoader, TokenShards
from harmax.errors import DamagedError
from harmax.train.language.batches import Prefetched
from harmax.train.language.model import NextTokenLoss, build_model
from harmax.train.language.step import LanguageStep
from harmax.train.language.text import generate_shards
from harmax.train.language.train import LanguageRecipe, pretrain
from harmax.train.world import World
from train.language.tiny import lines, spec

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def loader(tmp_path: Path) -> Callable[[], TokenLoader]:
    generate_shards(tmp_path, vocab=50)
    return lambda: TokenLoader(TokenShards(tmp_path), batch=3, length=16, seed=1)


@pytest.mark.parametrize(
    ("head", "impl"),
    [("linear", "auto"), ("gaussian", "auto"), ("harmonic", "auto"), ("harmonic", "chunked"), ("harmonic", "eager")],
)
@pytest.mark.parametrize("precise", [True, False])
def test_the_whole_loss_is_one_graph(head: str, impl: str, precise: bool) -> None:
    settings = spec(head=head, n_layer=1)
    loss = NextTokenLoss(build_model(settings), settings, impl=impl)
    compiled = torch.compile(loss, fullgraph=True, dynamic=False, backend="aot_eager")
    inputs, targets = torch.randint(50, (2, 2, 16), generator=torch.Generator().manual_seed(0))
    found = []
    for compute in (loss, compiled):
        with torch.autocast("cpu", torch.bfloat16, enabled=not precise):
            value = compute(inputs, targets)
        found.append((value, *torch.autograd.grad(value, list(loss.parameters()))))
    torch.testing.assert_close(*found, **({} if precise else {"rtol": 1e-2, "atol": 2e-2}))


@pytest.mark.parametrize("head", ["linear", "harmonic", "gaussian"])
def test_what_enters_the_head_is_what_transformers_computes(head: str) -> None:
    settings = spec(head=head)
    loss = NextTokenLoss(build_model(settings), settings)
    entered: list[Tensor] = []
    loss.model.transformer.ln_f.register_forward_hook(lambda module, inputs, output: entered.append(output))
    inputs, targets = torch.randint(50, (2, 2, 16))
    loss(inputs, targets)
    loss.model.transformer(inputs)
    torch.testing.assert_close(*entered)


def test_compiled_attention_is_causal_by_a_flag_and_not_by_a_mask() -> None:
    settings = spec(n_layer=2)
    loss = NextTokenLoss(build_model(settings), settings)
    calls: list[dict[str, Any]] = []

    def look(graph: torch.fx.GraphModule, example: list[Tensor]) -> Callable[..., Any]:
        attention = torch.nn.functional.scaled_dot_product_attention
        calls.extend(dict(node.kwargs) for node in graph.graph.nodes if node.target is attention)
        return graph.forward

    torch.compile(loss, backend=look)(*torch.randint(50, (2, 2, 16)))
    assert [(call["attn_mask"], call["is_causal"]) for call in calls] == [(None, True)] * 2


def test_compiled_runs_of_one_process_do_not_use_up_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []

    def count(graph: torch.fx.GraphModule, example: list[Tensor]) -> Callable[..., Any]:
        compiled[-1] += 1
        return graph.forward

    monkeypatch.setattr(
        NextTokenLoss, "compile", lambda self, **options: nn.Module.compile(self, backend=count, **options)
    )
    with torch._dynamo.config.patch(recompile_limit=2, accumulated_recompile_limit=2):
        for exponent in (2.0, 3.0, 4.0):
            compiled.append(0)
            settings = spec(exponent=exponent, steps=1, compile=True, n_layer=1)
            pretrain(settings, tmp_path / str(exponent), device="cpu")
    assert compiled == [2, 2, 2]  # a graph for training and one for evaluation


def test_batches_are_those_of_the_loader_and_the_state_is_of_the_last_one(loader: Callable[[], TokenLoader]) -> None:
    plain, ahead = loader(), Prefetched(loader(), CPU)
    assert ahead.state == plain.state()
    for _ in range(5):
        for got, want in zip(next(ahead), next(plain), strict=True):
            np.testing.assert_array_equal(got.numpy(), want)
        assert ahead.state == plain.state()
        assert ahead.epochs_seen == plain.epochs_seen
    resumed = loader()
    resumed.load(ahead.state)
    torch.testing.assert_close(next(Prefetched(resumed, CPU)), next(ahead))


def test_the_next_batch_is_read_by_another_thread_before_it_is_asked_for(loader: Callable[[], TokenLoader]) -> None:
    source, readers, read = loader(), [], threading.Semaphore(0)
    take = source.shards.read_windows

    def note(windows: np.ndarray, length: int) -> np.ndarray:
        readers.append(threading.get_ident())
        found = take(windows, length)
        read.release()
        return found

    source.shards.read_windows = note  # type: ignore[method-assign]
    next(Prefetched(source, CPU))
    assert all(read.acquire(timeout=60) for _ in range(2))
    assert threading.get_ident() not in readers


def test_damage_that_the_reader_finds_is_raised_where_the_batch_is_wanted(loader: Callable[[], TokenLoader]) -> None:
    source = loader()
    take, left = source.shards.read_windows, itertools.count()

    def fail(windows: np.ndarray, length: int) -> np.ndarray:
        if next(left):
            raise DamagedError("a token beyond the vocabulary")
        return take(windows, length)

    source.shards.read_windows = fail  # type: ignore[method-assign]
    batches = Prefetched(source, CPU)
    next(batches)
    state = batches.state
    for _ in range(2):
        with pytest.raises(DamagedError, match="beyond the vocabulary"):
            next(batches)
    assert batches.state == state


def test_speed_counts_steps_and_neither_evaluations_nor_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def after(seconds: float, do: Callable[..., Any]) -> Callable[..., Any]:
        def work(*arguments: Any, **options: Any) -> Any:
            now[0] += seconds
            return do(*arguments, **options)

        return work

    monkeypatch.setattr("harmax.train.loop.time.perf_counter", lambda: now[0])
    monkeypatch.setattr(LanguageStep, "__call__", after(0.5, LanguageStep.__call__))
    monkeypatch.setattr(LanguageRecipe, "evaluate", after(1000, LanguageRecipe.evaluate))
    monkeypatch.setattr("harmax.train.loop.write_checkpoint", after(1000, lambda *_, **__: None))
    pretrain(spec(steps=7, log_every=3, evaluate_every=2, checkpoint_every=3), tmp_path, device="cpu")
    assert now[0] > 6000
    assert [(line["step"], line["tokens_per_s"]) for line in lines(tmp_path)] == [
        (step, 8 * 16 / 0.5) for step in (1, 2, 3, 4, 6, 7)
    ]


def test_a_step_gives_the_sum_of_the_losses_before_it_and_changes_the_model() -> None:
    settings = spec(sequences=4, micro_batch=2)
    step = LanguageStep(settings, World(0, 1, CPU))
    batches = [tuple(torch.randint(50, (2, 2, 16))) for _ in range(2)]
    before = step.evaluate(iter(batches))
    loss, norm = step(iter(batches), 1e-2)
    assert loss.item() == pytest.approx(before.item(), rel=1e-6)
    assert norm > 0
    assert step.evaluate(iter(batches)) < before
    assert all(parameter.grad is None for parameter in step.model.parameters())
