"""GPT-2 with a harmonic head as Hugging Face models: blocks and attention of transformers, centers and loss of harmax.

Shape suffixes: B sequences, T tokens per sequence, D features, K selected positions.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harmax.errors import needs
from harmax.heads.harmonic import HarmonicHead
from harmax.heads.scale import length, length_behind, matched_scale
from harmax.hf.config import HarmonicGPT2Config, check_multiple
from harmax.hf.head import LearnableTokenHead, TokenHead
from harmax.kernels.operators import is_traced

with needs("hf"):
    from transformers import GPT2LMHeadModel, GPT2Model, GPT2PreTrainedModel
    from transformers import initialization as init
    from transformers.modeling_outputs import CausalLMOutputWithCrossAttentions
    from transformers.utils import can_return_tuple

IGNORED = -100
"""The label of a token that is not predicted, as everywhere in transformers."""


class HarmonicGPT2PreTrainedModel(GPT2PreTrainedModel):
    """Base of the harmonic GPT-2 models: configuration, initial weights, and a padded vocabulary that can be resized.

    `_init_weights` and `_get_resized_lm_head` are the places where transformers lets a model class step in.
    """

    config: HarmonicGPT2Config
    config_class = HarmonicGPT2Config
    _keys_to_ignore_on_load_missing = (r"lm_head\.settings",)  # models that were saved before heads had settings

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, HarmonicHead):
            init.normal_(module.weight, std=self.config.initializer_range)
            if module.prior is not None:
                init.zeros_(module.prior)
            if isinstance(module, LearnableTokenHead):
                init.constant_(module.log_exponent, math.log(self.config.resolved_exponent))
            module.write_settings()

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


class HarmonicGPT2Model(HarmonicGPT2PreTrainedModel, GPT2Model):
    """The body of a harmonic GPT-2 without its head: the `GPT2Model` of transformers with a padded embedding."""

    def __init__(self, config: HarmonicGPT2Config) -> None:
        super().__init__(config)
        if config.padded_vocab_size != config.vocab_size:
            self.wte = nn.Embedding(config.padded_vocab_size, config.n_embd)
            self.post_init()  # initializes the new embedding only: all other weights are initialized already


class HarmonicGPT2LMHeadModel(HarmonicGPT2PreTrainedModel, GPT2LMHeadModel):
    """A causal language model of transformers that predicts by the distance to token centers.

    The logits are log-probabilities of the `vocab_size` tokens, in float32, so they are negative. A logits processor
    that depends on their sign, such as the repetition penalty, therefore turns p into p^penalty. By default the head
    is tied to the embedding. Both start from N(0, initializer_range).

    >>> config = HarmonicGPT2Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=1, n_head=2)
    >>> model = HarmonicGPT2LMHeadModel(config)
    >>> model.lm_head
    TokenHead(in_features=16, out_features=50, exponent=4, softening=0, scale=0.03125)
    >>> tokens = torch.arange(8)[None]
    >>> model.eval()(tokens, labels=tokens).logits.shape
    torch.Size([1, 8, 50])
    """

    def __init__(self, config: HarmonicGPT2Config) -> None:
        super(GPT2LMHeadModel, self).__init__(config)
        self.transformer = HarmonicGPT2Model(config)
        kind = LearnableTokenHead if config.learn_exponent else TokenHead
        self.lm_head = kind(
            config.n_embd,
            config.vocab_size,
            rows=config.padded_vocab_size,
            exponent=config.exponent,
            softening=config.softening,
            scale=config.scale,
            prior=config.prior,
        )
        self.post_init()
        # transformers derives this from the name of the class. The Trainer needs it to count shifted labels correctly.
        self.loss_type = "ForCausalLM"
        self.match_scale()

    def match_scale(self) -> None:
        """Give the head the scale that suits its initial weights, unless the configuration has one.

        The last norm gives all features one length, so no batch is needed.
        """
        norm = self.transformer.ln_f
        if self.lm_head.wants_scale and not self.lm_head.weight.is_meta:
            lengths = length_behind(norm, self.config.n_embd), length(self.lm_head.token_weight)
            self.lm_head.scale = matched_scale(self.config.resolved_exponent, self.config.n_embd, *lengths)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: int | Tensor | None = None,
        skip_logits: bool | None = None,
        **others: Any,
    ) -> CausalLMOutputWithCrossAttentions:
        """Predict the next token at every position; with `labels` also compute the loss.

        Args:
            input_ids: tokens, (B, T). With `past_key_values` only the tokens that follow.
            inputs_embeds: vectors (B, T, D) in place of `input_ids`.
            past_key_values, attention_mask, token_type_ids, position_ids: as in the GPT-2 of transformers.
            use_cache: as in the GPT-2 of transformers; None means no cache while training.
            labels: the tokens themselves, (B, T); they are shifted here, and -100 is not predicted. `shift_labels` (in
                `others`) are labels that are shifted already: each is the token after its position.
            logits_to_keep: number of positions at the end that get logits and a loss (0: all), or which positions, as
                in `kept_places`.
            num_items_in_batch: divisor of the summed loss, so that accumulated steps add up to one batch; None means
                the number of labels here.
            skip_logits: return None for the logits. With a vocabulary of 50,000 they are larger than all other
                activations together. None means: skip them while training with labels.
            others: further arguments of the GPT-2 of transformers, such as `output_hidden_states` or `return_dict`.
        """
        shift_labels = others.pop("shift_labels", None)  # as a named argument, evaluation would require it as a label
        target = following(labels) if shift_labels is None and labels is not None else shift_labels
        learns = self.training and target is not None
        if use_cache is None and learns:
            use_cache = False
        if skip_logits is None:
            skip_logits = learns
        self._check_tokens(input_ids)
        outputs = self.transformer(
            input_ids,
            past_key_values=past_key_values,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **others,
        )
        hidden_BTD = kept_places(outputs.last_hidden_state, logits_to_keep)
        loss: Any = None  # transformers declares a FloatTensor, which a type checker does not accept a Tensor for
        if target is not None:
            loss = self._loss(hidden_BTD, target.to(hidden_BTD.device), num_items_in_batch)
        return CausalLMOutputWithCrossAttentions(
            loss=loss,
            logits=None if skip_logits else self.lm_head(hidden_BTD),
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
        )

    def save_pretrained(self, *arguments: Any, **options: Any) -> None:
        """Save the model; a scale that the first batch decided becomes part of its configuration."""
        self.config.scale = self.lm_head.scale
        super().save_pretrained(*arguments, **options)

    def _loss(self, hidden: Tensor, target: Tensor, items: int | Tensor | None) -> Tensor:
        if items is None:
            return self.lm_head(hidden, target, ignore_index=IGNORED)
        total = self.lm_head(hidden, target, reduction="sum", ignore_index=IGNORED)
        return total / (items.to(total.device) if isinstance(items, Tensor) else items)

    def _check_tokens(self, input_ids: Tensor | None) -> None:
        """Refuse tokens that would read padding; on a GPU the check would wait for the device, so it is skipped."""
        if input_ids is None or input_ids.device.type != "cpu" or is_traced(input_ids):
            return
        if input_ids.numel() and int(input_ids.max()) >= self.config.vocab_size:
            raise ValueError(
                f"`input_ids` must be below vocab_size ({self.config.vocab_size}), got {int(input_ids.max())}; "
                "use the tokenizer that the model was trained with, or call resize_token_embeddings."
            )

    def _set_rows(self, rows: int) -> None:
        super()._set_rows(rows)
        head = self.lm_head
        head.weight.data = fit_rows(head.weight.data, rows)  # changes nothing if the head is tied
        head.out_features = self.config.vocab_size

    def _get_resized_lm_head(self, old_lm_head: TokenHead, *arguments: Any, **options: Any) -> TokenHead:
        # transformers resizes a Linear only. Only its rows are used.
        linear = nn.Linear(*old_lm_head.weight.shape[::-1], bias=False, device="meta")
        linear.weight = old_lm_head.weight
        old_lm_head.weight.data = super()._get_resized_lm_head(linear, *arguments, **options).weight.data
        return old_lm_head


def following(labels: Tensor) -> Tensor:
    """Return labels shifted left by one, (B, T), so that each position holds the token to predict there.

    >>> following(torch.tensor([[1, 2, 3]]))
    tensor([[   2,    3, -100]])
    """
    return F.pad(labels[..., 1:], (0, 1), value=IGNORED)


def kept_places(hidden_BTD: Tensor, which: int | Tensor) -> Tensor:
    """Return the vectors at some positions of every sequence.

    Args:
        hidden_BTD: a vector per position.
        which: the number of positions at the end (0: all); or positions for all sequences, (K,); or positions per
            sequence, (B, K); or a mask, (B, T), which concatenates the positions of all sequences.

    >>> kept_places(torch.arange(3.0).reshape(1, 3, 1), 2).flatten()
    tensor([1., 2.])
    """
    if not isinstance(which, Tensor):
        return hidden_BTD[:, -which:]
    if which.dtype == torch.bool:
        return hidden_BTD[which]
    return hidden_BTD[:, which] if which.dim() == 1 else hidden_BTD.take_along_dim(which[..., None], 1)


def fit_rows(weight: Tensor, rows: int) -> Tensor:
    """Return the first rows of a matrix, with rows of zeros added if it has fewer.

    >>> fit_rows(torch.ones(1, 2), 2)
    tensor([[1., 1.],
            [0., 0.]])
    """
    return F.pad(weight[:rows], (0, 0, 0, max(rows - len(weight), 0)))
