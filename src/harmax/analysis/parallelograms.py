r"""Whether words of one relation form parallelograms: a : b = c : d if a - b - c + d is small.

The paper divides the gap by a scale of the embedding and uses two principal components,

.. math:: \ell = \|a - b - c + d\| / \sigma.

The authors' code computes the square, as `squared=True` does here. A square keeps the order, so ranks, shares and
comparisons are the same. Medians and thresholds are the squares of the paper's. The authors' notebook (function_vectors
in grow-crystals) sweeps 32 settings, which are `SETTINGS` here. It shows the first one, the paper's.
"""

# V tokens of the vocabulary, D features, R components in use, K words of a task, Q quadruples, N selected quadruples

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from harmax.analysis.arrays import checked_points
from harmax.analysis.pca import PCA, pca, project
from harmax.analysis.quadruples import Quadruples
from harmax.errors import unknown

FITS = ("vocabulary", "task")
"""The points that define the principal components: all tokens, or the task's words, each as often as it was drawn."""
SCALES = ("vocabulary", "task", "quadruple", "centered_quadruple")
r"""The definition of sigma, along the components in use, relative to the mean of the points that define them:

- vocabulary, task: root mean square length of all tokens, or of the task's words, each as often as it was drawn;
- quadruple: root mean square *coordinate* of the four points. The authors' two scales of single quadruples omit the
  factor sqrt(R) of a length, so their losses grow with the number of components;
- centered_quadruple: the same, relative to the mean of the four points."""
COMPONENTS = (2, 5, 10, 100)


@dataclass(frozen=True)
class ParallelogramSetting:
    """The space and the unit of a parallelogram loss; the default is the paper's."""

    scale: str = "vocabulary"
    """One of `SCALES`."""
    fit: str = "vocabulary"
    """One of `FITS`."""
    components: int = 2
    """Number of principal components. Coordinates beyond the dimension of the points are zero."""

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise ValueError(unknown("scale", self.scale, SCALES))
        if self.fit not in FITS:
            raise ValueError(unknown("fit", self.fit, FITS))
        if self.components < 1:
            raise ValueError(f"`components` must be at least 1, got {self.components}; the paper uses 2.")

    def __str__(self) -> str:
        return f"{self.components} components of the {self.fit}, scale of the {self.scale.replace('_', ' ')}"


SETTINGS = tuple(ParallelogramSetting(*one) for one in itertools.product(SCALES, FITS, COMPONENTS))
"""The 32 settings of the authors' sweep, with the paper's first."""
PAPER_SETTING = SETTINGS[0]


def parallelogram_loss(a: Any, b: Any, c: Any, d: Any, scale: Any, *, squared: bool = False) -> np.ndarray:
    r"""Return the deviation of four points from a parallelogram, :math:`\|a - b - c + d\| / \sigma`, (Q,) float64.

    Args:
        a: first words of the first pairs, (Q, R).
        b: second words of the first pairs, (Q, R).
        c: first words of the second pairs, (Q, R).
        d: second words of the second pairs, (Q, R).
        scale: sigma, one positive number, or one per quadruple, (Q,). A quadruple of four equal points may have the
            scale 0; then its loss is 0.
        squared: return the square, as the authors' code does.

    >>> parallelogram_loss([[0.0, 0.0]], [[1.0, 0.0]], [[0.0, 2.0]], [[1.0, 5.0]], scale=2.0)
    array([1.5])
    """
    corners = _corners(a, b, c, d)
    sigma = np.asarray(scale, dtype=np.float64)
    gap_Q = np.linalg.norm((corners[0] + corners[3]) - (corners[1] + corners[2]), axis=1)
    if sigma.shape not in ((), gap_Q.shape):
        raise ValueError(
            f"`scale` must be one number or have shape {gap_Q.shape}, one number per quadruple, got {sigma.shape}; "
            "pass one of them."
        )
    useless = ~(np.isfinite(sigma) & ((sigma > 0) | ((sigma == 0) & (gap_Q == 0) & (sigma.ndim > 0))))
    if useless.any():
        raise ValueError(
            f"`scale` must be positive and finite, got {sigma.min()} to {sigma.max()}; equal points have no scale, so "
            "leave them out."
        )
    loss = np.divide(gap_Q, sigma, out=np.zeros_like(gap_Q), where=np.broadcast_to(sigma > 0, gap_Q.shape))
    return np.square(loss) if squared else loss


def _corners(*points: Any) -> list[np.ndarray]:
    corners = [checked_points(corner, least=1) for corner in points]
    if len({corner.shape for corner in corners}) > 1:
        raise ValueError(
            f"`a`, `b`, `c` and `d` must have one shape, got {', '.join(str(corner.shape) for corner in corners)}; "
            "pass one row per quadruple."
        )
    return corners


class ParallelogramShape(NamedTuple):
    """What quadruples look like as parallelograms, whatever their size, place and direction; each (Q,)."""

    sine: np.ndarray
    """Area divided by the product of two neighboring sides, the sine of their angle: 1 for a rectangle, 0 if flat."""
    width: np.ndarray
    """Smaller extent divided by the larger one: 1 for a square, 0 if flat. A long thin rectangle is nearly flat."""


def parallelogram_shape(a: Any, b: Any, c: Any, d: Any) -> ParallelogramShape:
    r"""Return the shape of the parallelogram next to each quadruple. Its sides are the means of opposite sides,

    .. math:: u = \frac{(b - a) + (d - c)}{2}, \qquad v = \frac{(c - a) + (d - b)}{2}.

    The extents are the singular values of (u, v). A quadruple with a side of length 0 is flat.

    Args:
        a: first words of the first pairs, (Q, R).
        b: second words of the first pairs, (Q, R).
        c: first words of the second pairs, (Q, R).
        d: second words of the second pairs, (Q, R).

    >>> found = parallelogram_shape([[0.0, 0.0]], [[3.0, 0.0]], [[0.0, 1.0]], [[3.0, 1.0]])
    >>> found.sine.round(6), found.width.round(6)
    (array([1.]), array([0.333333]))
    """
    a_QR, b_QR, c_QR, d_QR = _corners(a, b, c, d)
    u_QR, v_QR = (b_QR - a_QR + d_QR - c_QR) / 2, (c_QR - a_QR + d_QR - b_QR) / 2
    u_Q, v_Q = (np.linalg.norm(side, axis=1) for side in (u_QR, v_QR))
    along_QR = u_QR / np.where(u_Q > 0, u_Q, 1)[:, None]
    height_Q = np.linalg.norm(v_QR - (v_QR * along_QR).sum(1, keepdims=True) * along_QR, axis=1)
    area_Q, squares_Q = u_Q * height_Q, u_Q**2 + v_Q**2
    # The singular values have this product and this sum of squares.
    larger_Q = (squares_Q + np.sqrt(np.maximum(squares_Q**2 - 4 * area_Q**2, 0))) / 2

    def share(part_Q: np.ndarray, whole_Q: np.ndarray) -> np.ndarray:
        whole = np.where((whole_Q > 0) & (u_Q > 0) & (v_Q > 0), whole_Q, np.inf)
        return np.minimum(part_Q / whole, 1.0)

    return ParallelogramShape(share(height_Q, v_Q), share(area_Q, larger_Q))


@dataclass(frozen=True, eq=False)
class ParallelogramSpace:
    """An embedding prepared for one task under all settings; `parallelogram_space` makes it."""

    embedding: np.ndarray
    """(V, D)"""
    axes: dict[str, PCA]
    """Principal components, by the points that define them (one of `FITS`)."""
    squares: dict[tuple[str, str], np.ndarray]
    """Mean square coordinate along each component, by scale (vocabulary or task) and fit."""

    def coordinates(self, tokens: Any, setting: ParallelogramSetting = PAPER_SETTING) -> np.ndarray:
        """Return the coordinates of tokens of any shape; a last axis holds the setting's components."""
        found = _checked_tokens(tokens, len(self.embedding))
        different, which = np.unique(found, return_inverse=True)
        rows = project(self.embedding[different], setting.components, fitted=self.axes[setting.fit])
        return rows[which.reshape(found.shape)]

    def losses(
        self, quadruples: Quadruples, setting: ParallelogramSetting = PAPER_SETTING, *, squared: bool = False
    ) -> np.ndarray:
        """Return the parallelogram loss of each quadruple, (Q,)."""
        corners_Q4R = self.coordinates(quadruples.tokens, setting)
        a, b, c, d = corners_Q4R.transpose(1, 0, 2)
        return parallelogram_loss(a, b, c, d, self._scale(corners_Q4R, setting), squared=squared)

    def shapes(self, quadruples: Quadruples, setting: ParallelogramSetting = PAPER_SETTING) -> ParallelogramShape:
        """Return the shape of each quadruple along the setting's components."""
        return parallelogram_shape(*self.coordinates(quadruples.tokens, setting).transpose(1, 0, 2))

    def _scale(self, corners_Q4R: np.ndarray, setting: ParallelogramSetting) -> Any:
        if setting.scale == "quadruple":
            return np.sqrt(np.square(corners_Q4R).mean((1, 2)))
        if setting.scale == "centered_quadruple":
            return np.sqrt(np.square(corners_Q4R - corners_Q4R.mean(1, keepdims=True)).mean((1, 2)))
        return np.sqrt(self.squares[setting.scale, setting.fit][: setting.components].sum())


def parallelogram_space(embedding: Any, words: Any, *, fitted: PCA | None = None) -> ParallelogramSpace:
    """Return the components and scales of an embedding for one task's quadruples, under every setting.

    Use the same space for quadruples and for their null.

    Args:
        embedding: one row per token, (V, D), without rows that only pad the vocabulary.
        words: the tokens of the task, each as often as it was drawn, of any shape: `quadruples.tokens`.
        fitted: `pca(embedding)`, if it is known already; None means compute it here.

    >>> from harmax.analysis import sample_quadruples
    >>> points = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [1.0, 2.0], [5.0, 3.0]])
    >>> quadruples = sample_quadruples([[0, 1], [2, 3]])
    >>> parallelogram_space(points, quadruples.tokens).losses(quadruples).round(9)
    array([0.])
    """
    # The embedding stays in its own precision. It is large, and only the rows in use become float64.
    x_VD = np.asarray(embedding)
    vocabulary = pca(x_VD) if fitted is None else fitted
    if x_VD.ndim != 2 or vocabulary.mean.shape != x_VD.shape[1:]:
        raise ValueError(
            f"`fitted` must have the {x_VD.shape[1:]} features of `embedding`, got {vocabulary.mean.shape}; pass "
            "pca(embedding)."
        )
    different, counts_K = np.unique(_checked_tokens(words, len(x_VD)), return_counts=True)
    x_KD = checked_points(x_VD[different], least=1)
    axes = {"vocabulary": vocabulary, "task": _counted_pca(x_KD, counts_K)}
    spread = vocabulary.variances * (len(x_VD) - 1) / len(x_VD)
    squares = {}
    for fit, (mean_D, components_RD, *_) in axes.items():
        # The vocabulary's mean square along any axis follows from its components, without its points.
        shift_R = (vocabulary.mean - mean_D) @ components_RD.T
        squares["vocabulary", fit] = np.square(components_RD @ vocabulary.components.T) @ spread + shift_R**2
        squares["task", fit] = counts_K @ np.square((x_KD - mean_D) @ components_RD.T) / counts_K.sum()
    return ParallelogramSpace(x_VD, axes, squares)


class RankedQuadruples(NamedTuple):
    """Some quadruples at one quantile of the loss, best first, with their coordinates in the plane."""

    rows: np.ndarray
    """(N,), their row numbers among the quadruples."""
    losses: np.ndarray
    """(N,)"""
    tokens: np.ndarray
    """(N, 4)"""
    plane: np.ndarray
    """(N, 4, 2): a, b, c, d along the first two components of the setting's fit."""


def ranked_quadruples(
    space: ParallelogramSpace,
    quadruples: Quadruples,
    setting: ParallelogramSetting = PAPER_SETTING,
    *,
    count: int = 5,
    quantile: float = 0.0,
) -> RankedQuadruples:
    """Return the quadruples around one quantile of the loss, for a figure: 0 the best, 0.5 the median, 1 the worst.

    The best of 10,000 look like parallelograms in any embedding. Show them together with the median.

    Args:
        space: the space of the quadruples' task.
        quadruples: at least one.
        setting: the setting of the loss.
        count: largest number of quadruples.
        quantile: 0 to 1.
    """
    if count < 1 or not 0 <= quantile <= 1:
        raise ValueError(
            f"`count` must be at least 1 and `quantile` from 0 to 1, got {count} and {quantile}; quantile 0 is the "
            "best, 0.5 the median."
        )
    losses = space.losses(quadruples, setting)
    start = round(quantile * max(len(losses) - count, 0))
    rows = np.argsort(losses, kind="stable")[start : start + count]
    plane = space.coordinates(quadruples.tokens[rows], ParallelogramSetting(fit=setting.fit))
    return RankedQuadruples(rows, losses[rows], quadruples.tokens[rows], plane)


def _counted_pca(x_KD: np.ndarray, counts_K: np.ndarray) -> PCA:
    """Return `pca` of points with multiplicities."""
    total = counts_K.sum()
    mean_D = counts_K @ x_KD / total
    rows_KD = np.sqrt(counts_K)[:, None] * (x_KD - mean_D)
    # Rows and their mirror images have the mean 0, so that pca does not shift them.
    found = pca(np.concatenate([rows_KD, -rows_KD]))
    rank = min(x_KD.shape)
    variances = found.variances[:rank] * (2 * len(rows_KD) - 1) / (2 * max(total - 1, 1))
    return PCA(mean_D, found.components[:rank], variances, found.ratio[:rank])


def _checked_tokens(tokens: Any, vocabulary: int) -> np.ndarray:
    found = np.asarray(tokens)
    if not found.size or not np.issubdtype(found.dtype, np.integer):
        raise ValueError(
            f"tokens must be one or more whole numbers, got {found.dtype} of shape {found.shape}; encode the words."
        )
    if found.min() < 0 or found.max() >= vocabulary:
        raise ValueError(
            f"tokens must be from 0 to {vocabulary - 1}, got {found.min()} to {found.max()}; encode words with the "
            "vocabulary of this embedding."
        )
    return found
