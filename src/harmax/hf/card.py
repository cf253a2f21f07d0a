"""The model card of a harmonic model: what it is, and how it is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import harmax

if TYPE_CHECKING:
    from harmax.hf.model import HarmonicModel

AUTOMATIC = "This model card has been automatically generated"
"""What transformers writes into a card about which it knows nothing."""

CARD = """\
---
library_name: transformers
tags:
- harmax
- harmonic-loss
---

# {kind}

A {plain} whose output layer is harmonic. It predicts by distances to class centers instead of inner products:

$$\\log p_j = {prior}-\\tfrac{{n}}{{2}} \\log(\\|c\\,x - w_j\\|^2{softening_term}) - \\log Z$$

| setting | value |
|---|---|
| exponent n | {exponent:g} |
| factor c on the features | {scale} |
| softening a | {softening:g} |
| class prior b | {has_prior} |

## How to load it

```sh
pip install "harmax[hf]"
```

```python
import harmax.hf  # makes transformers know the type "{model_type}"
from transformers import {auto}

model = {auto}.from_pretrained("PATH OR NAME OF THIS MODEL")
```

Without the first line transformers refuses the model. Its "logits" are log-probabilities, float32 and never positive.
Do not load the weights into another class, and do not read them with a server that computes inner products: the
predictions would be wrong.

Saved with harmax {version}. The idea is from the paper "Harmonic Loss Trains Interpretable AI Models"
(https://arxiv.org/abs/2502.01628).
"""


def is_automatic(card: str) -> bool:
    """Return whether a card says nothing about the model."""
    return AUTOMATIC in card


def model_card(model: HarmonicModel) -> str:
    """Return the card of a model."""
    head, kind = model.harmonic_head, type(model).__name__
    autos = {
        "ForSequenceClassification": "AutoModelForSequenceClassification",
        "ForImageClassification": "AutoModelForImageClassification",
        "ForMaskedLM": "AutoModelForMaskedLM",
    }
    exponent = head.exponent.detach().item() if not isinstance(head.exponent, float) else head.exponent
    return CARD.format(
        kind=kind,
        plain=kind.removeprefix("Harmonic"),
        exponent=exponent,
        scale="not found yet" if head.scale is None else f"{head.scale:g}",
        softening=head.softening,
        softening_term=" + a" if head.softening else "",
        prior="b_j " if head.prior is not None else "",
        has_prior="learned" if head.prior is not None else "none",
        model_type=model.config.model_type,
        auto=next((auto for end, auto in autos.items() if kind.endswith(end)), "AutoModelForCausalLM"),
        version=harmax.__version__,
    )
