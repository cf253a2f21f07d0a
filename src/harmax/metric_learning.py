"""Harmonic loss as a loss of pytorch-metric-learning, for its trainers, miners, reducers and testers."""

from typing import Any

from torch import Tensor

from harmax.errors import needs
from harmax.heads import HarmonicHead

with needs("metric-learning"):
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.losses import BaseMetricLossFunction
    from pytorch_metric_learning.utils import common_functions, loss_and_miner_utils

HEAD = ("exponent", "softening", "scale", "prior", "device", "dtype")


class HarmonicMetricLoss(BaseMetricLossFunction):
    r"""A classification loss of pytorch-metric-learning with a `HarmonicHead`, the submodule `head`.

    .. math:: \ell_i = \log \sum_j e^{z_{ij}} - z_{ic}, \qquad z_{ij} = b_j - \tfrac{n}{2} \log(\|c\,x_i - w_j\|^2 + a)

    It has centers, so give its parameters to an optimizer, too.

    Args:
        num_classes: V.
        embedding_size: D.
        options: `exponent`, `softening`, `scale`, `prior`, `device` and `dtype` as for `HarmonicHead`; others, such as
            `reducer` and `embedding_regularizer`, as for all losses of pytorch-metric-learning. There is no `distance`
            to choose.

    >>> import torch
    >>> loss = HarmonicMetricLoss(3, 16, exponent=4.0)
    >>> loss(torch.randn(8, 16), torch.randint(3, (8,))).shape, loss.get_logits(torch.randn(2, 16)).shape
    (torch.Size([]), torch.Size([2, 3]))
    """

    def __init__(self, num_classes: int, embedding_size: int, **options: Any) -> None:
        if "distance" in options:
            raise TypeError("`distance` must be left out, because a harmonic loss takes the Euclidean one; remove it.")
        settings: Any = {key: options.pop(key) for key in HEAD if key in options}
        super().__init__(**options)
        self.head = HarmonicHead(embedding_size, num_classes, **settings)
        self.num_classes, self.embedding_size = num_classes, embedding_size
        self.add_to_recordable_attributes(list_of_names=["num_classes", "embedding_size"], is_stat=False)

    def compute_loss(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: Any, ref_emb: Any, ref_labels: Any
    ) -> dict[str, dict[str, Any]]:
        """Return the loss of each embedding, weighted by how often a miner chose it."""
        common_functions.labels_required(labels)
        common_functions.ref_not_supported(embeddings, labels, ref_emb, ref_labels)
        losses = self.head(embeddings, labels, reduction="none")
        weights = loss_and_miner_utils.convert_to_weights(indices_tuple, labels, dtype=losses.dtype)
        indices = common_functions.torch_arange_from_size(embeddings)
        return {"loss": {"losses": losses * weights, "indices": indices, "reduction_type": "element"}}

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Return log-probabilities, (..., V)."""
        return self.head(embeddings)

    def get_default_distance(self) -> LpDistance:
        """Return the distance that the head takes, which some wrappers ask for."""
        return LpDistance(normalize_embeddings=False)
