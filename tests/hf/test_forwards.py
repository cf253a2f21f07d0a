"""Nobody makes a dot product of a harmonic model by replacing its forward."""

import copy
import functools
import types
import warnings

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from transformers import LlamaForCausalLM

from harmax.hf import harmonize
from hf.zoo import batch, plain


def harmonic(name="llama"):
    return harmonize(plain(name), exponent=24).train()


def by_products(self, input_ids, labels=None, **options):
    hidden = self.model(input_ids).last_hidden_state
    return self.loss_function(hidden @ self.lm_head.weight.T, labels, vocab_size=50)


def test_a_forward_that_does_not_ask_the_head_is_stopped():
    model, inputs = harmonic(), batch("llama")
    expected = model(**inputs).loss
    model.forward = types.MethodType(by_products, model)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"must ask its harmonic head, got by_products.*`del model\.forward`"):
            model(**inputs)
    del model.forward
    torch.testing.assert_close(model(**inputs).loss, expected)


def test_a_wrapper_stays_and_its_copies_are_their_own():
    model, inputs = harmonic(), batch("llama")
    expected, calls = model(**inputs).loss, []
    own = model.forward

    @functools.wraps(own)
    def counting(*arguments, **options):
        calls.append(None)
        return own(*arguments, **options)

    model.forward = counting
    torch.testing.assert_close(model(**inputs).loss, expected)
    torch.testing.assert_close(model(**inputs).loss, expected)
    assert len(calls) == 2
    model.forward = types.MethodType(type(model).forward, model)
    torch.testing.assert_close(model(**inputs).loss, expected)
    assert len(calls) == 2


@pytest.mark.slow
def test_a_compiled_forward_may_take_the_place_of_the_forward():
    inputs = batch("llama")
    for _ in range(2):  # the second model uses what was compiled for the first one
        model = harmonic()
        expected = model(**inputs).loss
        model.forward = torch.compile(model.forward, backend="eager", fullgraph=True)
        torch.testing.assert_close(model(**inputs).loss, expected)
        torch.testing.assert_close(model.eval()(**inputs).loss, expected)
    model.forward = torch.compile(types.MethodType(by_products, model), backend="eager")
    with pytest.raises(RuntimeError, match="must ask its harmonic head, got by_products"):
        model(**inputs)


def test_mixed_precision_of_accelerate_wraps_the_forward():
    model, inputs = harmonic(), batch("llama")
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(**inputs).loss
    AcceleratorState._reset_state()  # other tests have used another precision
    prepared = Accelerator(mixed_precision="bf16", cpu=True).prepare(model)
    output = prepared(**inputs)
    torch.testing.assert_close(output.loss, expected)
    assert output.logits is None
    output.loss.backward()
    torch.testing.assert_close(copy.deepcopy(prepared)(**inputs).loss, expected)
    AcceleratorState._reset_state()


@pytest.fixture
def liger():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("liger_kernel.transformers")


OFF = dict(rope=False, rms_norm=False, swiglu=False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("training", [True, False])
def test_ligers_fused_cross_entropy_on_the_model_changes_nothing(liger, training, caplog):
    model, inputs = harmonic().train(training), batch("llama")
    expected = model(**inputs).loss
    liger.apply_liger_kernel_to_llama(**OFF, model=model)
    torch.testing.assert_close(model(**inputs).loss, expected)
    assert "The fused cross-entropy of Liger is left out" in caplog.text
    liger._apply_liger_kernel_to_instance(model=model)
    torch.testing.assert_close(model(**inputs).loss, expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("before", [True, False])
def test_ligers_fused_cross_entropy_on_the_class_never_sees_the_labels(liger, before, monkeypatch):
    inputs = batch("llama")
    expected = harmonic()(**inputs).loss
    monkeypatch.setattr(LlamaForCausalLM, "forward", LlamaForCausalLM.forward)  # so that it is put back
    model = None if before else harmonic()
    liger.apply_liger_kernel_to_llama(**OFF)
    model = model or harmonic()
    torch.testing.assert_close(model(**inputs).loss, expected)
    torch.testing.assert_close(model.eval()(**inputs).loss, expected)
