"""GPT-2 with a harmonic head: what all harmonic models have, a padded vocabulary and an exponent that is learned.

Shape suffixes: B sequences, T tokens per sequence.
"""

from __future__ import annotations

from typing import Any, Self

import torch.nn.functional as F
from torch import Tensor, nn

from harmax.errors import needs
from harmax.hf.config import HarmonicGPT2Config, check_multiple
from harmax.hf.head import LearnableTokenHead, TokenHead
from harmax.hf.probe import Trial
from harmax.hf.tasks import HarmonicLanguageModel
from harmax.kernels.operators import is_traced

with needs("hf"):
    from transformers import GPT2LMHeadModel, GPT2Model

Base: Any = object  # a GPT-2 of transformers


class PaddedVocabulary(Base):
    """A GPT-2 whose embedding has rows beyond its tokens, and can be resized."""

    def resize_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
    ) -> nn.Embedding:
        """Change the number of tokens; embedding and head stay padded, and the head stays harmonic.

        Args:
            new_num_tokens: the new size of the vocabulary and width of the logits; None keeps the old size.
            pad_to_multiple_of: make the number of rows, not of tokens, a multiple of this; None keeps the old value.
            mean_resizing: start new rows near the mean of the old rows instead of from N(0, initializer_range).

        Returns:
            The embedding.
        """
        if new_num_tokens is None and pad_to_multiple_of is None:
            return self._embedding()
        if pad_to_multiple_of is not None:
            self.config.pad_vocab_to_multiple_of = check_multiple(pad_to_multiple_of)
        tokens = self.config.vocab_size if new_num_tokens is None else new_num_tokens
        # Padding is removed first. Otherwise transformers would turn padding rows into tokens and include them in the
        # mean of the old rows.
        self._set_rows(self.config.vocab_size)
        super().resize_token_embeddings(tokens, mean_resizing=mean_resizing)
        self._set_rows(self.config.padded_vocab_size)
        return self._embedding()

    def _embedding(self) -> nn.Embedding:
        embedding = self.get_input_embeddings()
        assert isinstance(embedding, nn.Embedding)
        return embedding

    def _set_rows(self, rows: int) -> None:
        """Cut the embedding to a number of rows, or extend it with zeros."""
        embedding = self._embedding()
        embedding.weight.data = fit_rows(embedding.weight.data, rows)
        embedding.num_embeddings = rows


class HarmonicGPT2Model(PaddedVocabulary, GPT2Model):
    """The body of a harmonic GPT-2 without its head: the `GPT2Model` of transformers with a padded embedding."""

    config_class = HarmonicGPT2Config

    def __init__(self, config: HarmonicGPT2Config) -> None:
        super().__init__(config)
        if config.padded_vocab_size != config.vocab_size:
            self.wte = nn.Embedding(config.padded_vocab_size, config.n_embd)
            self.post_init()  # initializes the new embedding only: all other weights are initialized already


class HarmonicGPT2LMHeadModel(PaddedVocabulary, HarmonicLanguageModel, GPT2LMHeadModel):
    """A causal language model of transformers that predicts by the distance to token centers.

    The logits are log-probabilities of the `vocab_size` tokens, in float32, so they are negative. A logits processor
    that depends on their sign, such as the repetition penalty, therefore turns p into p^penalty. By default the head
    is tied to the embedding. Both start from N(0, initializer_range).

    >>> import torch
    >>> config = HarmonicGPT2Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=1, n_head=2)
    >>> model = HarmonicGPT2LMHeadModel(config)
    >>> model.lm_head
    TokenHead(in_features=16, out_features=50, exponent=4, softening=0, scale=0.03125)
    >>> tokens = torch.arange(8)[None]
    >>> model.eval()(tokens, labels=tokens).logits.shape
    torch.Size([1, 8, 50])
    """

    config_class = HarmonicGPT2Config
    harmonic_shifts = True
    harmonic_head_path = "lm_head"
    lm_head: TokenHead

    def __init__(self, config: HarmonicGPT2Config) -> None:
        super(GPT2LMHeadModel, self).__init__(config)
        self.transformer = HarmonicGPT2Model(config)
        kind = LearnableTokenHead if config.learn_exponent else TokenHead
        self.lm_head = kind(
            config.n_embd,
            config.vocab_size,
            rows=config.padded_vocab_size,
            exponent=config.harmonic_exponent,
            softening=config.harmonic_softening,
            scale=config.harmonic_scale,
            prior=bool(config.harmonic_prior),
        )
        self.post_init()
        self._adopt_head()
        self._adopt_loss()
        self.match_scale()

    def match_scale(self) -> None:
        """Give the head the scale that suits its weights, unless the configuration has one.

        The last norm gives all features one length, so no batch is needed.
        """
        if not self.lm_head.weight.is_meta:
            self._match_scale(Trial(self.transformer.ln_f))

    def started(self, start: str) -> Self:
        """Return the model, with the factor on its features in the gain of the last norm if `start` is "gain"."""
        if start == "gain":
            self._start_with_gain(self.transformer.ln_f)
        return self

    def _try(self) -> None:
        self.match_scale()

    def _check_inputs(self, options: dict[str, Any]) -> None:
        """Refuse tokens that would read padding; on a GPU the check would wait for the device, so it is skipped."""
        tokens_BT: Tensor | None = options.get("input_ids")
        if tokens_BT is None or tokens_BT.device.type != "cpu" or is_traced(tokens_BT) or not tokens_BT.numel():
            return
        if int(tokens_BT.max()) >= self.config.vocab_size:
            raise ValueError(
                f"`input_ids` must be below vocab_size ({self.config.vocab_size}), got {int(tokens_BT.max())}; "
                "use the tokenizer that the model was trained with, or call resize_token_embeddings."
            )

    def _set_rows(self, rows: int) -> None:
        super()._set_rows(rows)
        head = self.lm_head
        head.weight.data = fit_rows(head.weight.data, rows)  # changes nothing if the head is tied
        if head.prior is not None:
            head.prior.data = fit_rows(head.prior.data[:, None], rows)[:, 0]
        head.out_features = self.config.vocab_size


def fit_rows(weight: Tensor, rows: int) -> Tensor:
    """Return the first rows of a matrix, with rows of zeros added if it has fewer.

    >>> import torch
    >>> fit_rows(torch.ones(1, 2), 2)
    tensor([[1., 1.],
            [0., 0.]])
    """
    return F.pad(weight[:rows], (0, 0, 0, max(rows - len(weight), 0)))
