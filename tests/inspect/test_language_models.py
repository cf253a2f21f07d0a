"""Models of others: what transformers says on loading becomes one line that names the model."""

import pytest

pytest.importorskip("transformers")

from harmax.hf import HarmonicGPT2Config
from harmax.inspect.language_models import loading


def test_a_setting_of_a_wrong_type_names_the_model() -> None:
    with pytest.raises(ValueError, match=r"got 'run/model' \(.*must be a number, got \[\].*\)"), loading("run/model"):
        HarmonicGPT2Config(harmonic_softening=[])
