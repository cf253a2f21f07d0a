"""A scikit-learn classifier of class centers."""

# N rows, D columns after encoding, V classes

import operator
from collections.abc import Callable, Sequence
from typing import Any, Self, overload

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, validate_data
from torch import nn

from harmax.sklearn.abstention import AbstainRule, find_rule
from harmax.sklearn.columns import Columns, is_table, plain_columns
from harmax.sklearn.explanation import Explanation, NearRow, Reason
from harmax.sklearn.extract import extract
from harmax.sklearn.search import Auto, choose, with_temperature
from harmax.sklearn.settings import check_settings, fitting_of
from harmax.sklearn.training import Rows, fit_model


class HarmonicClassifier(ClassifierMixin, BaseEstimator):
    r"""A classifier whose classes are centers in the units of the table.

    .. math:: p_j \propto \|x - w_j\|^{-n / T}

    x is a row whose columns were standardized, w_j the center of class j, n the exponent and T the temperature. The
    predicted class is the one of the nearest center. Numbers are divided by their standard deviation. Columns of text,
    categories or booleans of a DataFrame become one indicator per value; together they have variance 1, as a number
    has. Missing values are refused. A constant column is ignored.

    Training starts with each center at the mean of its class (with up to three columns farther out), and lowers the
    harmonic loss with L-BFGS. With `exponent="auto"` and `temperature="auto"` stratified cross-validation chooses both
    by the log loss of held-out rows, so a fit trains about 20 to 40 small models. Equal rows always share a fold, and a
    weight of 3 means the same as three copies. There is no `partial_fit`, because standard deviations and the choices
    need all rows. A fitted model keeps its training rows, because `explain` names the nearest ones.

    Args:
        exponent: n, or "auto": doubled or halved from 8 on, while held-out rows gain.
        temperature: T, or "auto": the best one for held-out rows. 1 leaves probabilities as they are.
        pull: how strongly a center is held at the mean of its class, and a hidden layer at 0. With a large number and
            no hidden layer the model becomes the nearest centroid with harmonic probabilities.
        features: a trained network or a function whose output the head looks at instead of X, such as
            `SentenceTransformer(...).encode`. It is not trained. X may then hold anything that it takes.
        hidden: width of one hidden layer, which is trained, or None. Centers are then no rows of the table, so
            `centers_` and the reasons of `explain` are missing.
        folds: number of folds of the cross-validation. From 1,000 distinct rows on, one fold compares exponents.
        class_weight: as in scikit-learn: None, "balanced", or a dict from class to weight.
        batch_size: rows per step of Adam, None for all rows at once, or "auto": all of them up to 20,000, else 1,024.
        max_iter: most iterations of L-BFGS.
        random_state: seed of the folds, of the hidden layer and of mini-batches.

    Attributes:
        classes_: (V,).
        centers_: (V, D) in the units of the table; a DataFrame if X was one.
        exponent_, temperature_: the numbers that were used.
        calibration_: where the temperature came from: the kind of validation, "given", or "none: too few rows".
        compared_: log loss of held-out rows per exponent that was tried.
        head_: the `HarmonicHead`, which looks at standardized columns.
        n_features_in_, feature_names_in_, n_iter_: as in scikit-learn.

    >>> from sklearn.datasets import load_iris
    >>> flowers = load_iris(as_frame=True)
    >>> model = HarmonicClassifier(random_state=0).fit(flowers.data, flowers.target_names[flowers.target])
    >>> model.centers_.loc["setosa", "petal length (cm)"] < model.centers_.loc["virginica", "petal length (cm)"]
    np.True_
    >>> model.explain(flowers.data.iloc[0]).predicted
    'setosa'
    """

    def __init__(
        self,
        *,
        exponent: Auto = "auto",
        temperature: Auto = "auto",
        pull: float = 0.1,
        features: nn.Module | Callable[[Any], Any] | None = None,
        hidden: int | None = None,
        folds: int = 5,
        class_weight: Any = None,
        batch_size: Any = "auto",
        max_iter: int = 500,
        random_state: Any = None,
    ) -> None:
        self.exponent = exponent
        self.temperature = temperature
        self.pull = pull
        self.features = features
        self.hidden = hidden
        self.folds = folds
        self.class_weight = class_weight
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        """Say what scikit-learn's checks may give."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = self.features is None
        tags.input_tags.string = tags.input_tags.categorical = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the centers.

        Args:
            X: a matrix of numbers or a DataFrame, (N, columns); with `features` whatever that takes.
            y: classes, (N,): numbers, strings or booleans.
            sample_weight: how much each row counts, (N,), not below 0.
        """
        check_settings(self)
        values, names = self._read(X, reset=True)
        y_N = column_or_1d(y, warn=True)
        if len(values[0]) != len(y_N):
            raise ValueError(
                f"X and y must have the same number of rows, got {len(values[0])} and {len(y_N)}: inconsistent numbers "
                "of samples; pass one class per row."
            )
        check_classification_targets(y_N)
        weight_N = self._weights(sample_weight, y_N)
        kept = np.flatnonzero(weight_N > 0)
        self.classes_, codes_N = np.unique(y_N[kept], return_inverse=True)
        self._check_classes()
        values, weight_N = [column[kept] for column in values], weight_N[kept]
        self._columns = Columns.fit(values, names, weight_N)
        rows, first = _distinct(self._columns.encode(values), codes_N, weight_N)
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        fitting = fitting_of(self, len(self.classes_), len(rows), seed)
        choice = choose(rows, self.exponent, self.temperature, fitting, self.folds, [str(one) for one in self.classes_])
        self.exponent_, self.temperature_ = choice.exponent, choice.temperature
        self.calibration_, self.compared_ = choice.calibration, dict(sorted(choice.tried.items()))
        self._held_out = choice.held_out
        self._model, self.n_iter_, converged = fit_model(rows, choice.exponent, fitting)
        self._model.eval().requires_grad_(False)
        self._rows = rows
        labels = np.asarray(X.index) if is_table(X) else np.arange(len(y_N))
        self._row_labels = labels[kept][first].tolist()
        self._as_table = is_table(X) and self.features is None
        if not converged:
            _warn_not_converged(self.max_iter)
        return self

    @property
    def head_(self) -> nn.Module:
        """The harmonic head, which looks at standardized columns, or at the hidden layer."""
        check_is_fitted(self)
        return self._model.head

    @property
    def centers_(self) -> Any:
        """The class centers in the units of the table, (V, D); a DataFrame if X was one."""
        check_is_fitted(self)
        if self.hidden is not None:
            raise AttributeError(
                "a classifier must have no hidden layer for `centers_` in the units of the table, got one; leave "
                "`hidden` out, or read head_.centers, which are in the space of that layer."
            )
        centers_VD = self._columns.in_units(self._model.head.centers.numpy())
        if not self._as_table:
            return centers_VD
        from pandas import DataFrame

        return DataFrame(centers_VD, index=self.classes_, columns=self._columns.names)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return calibrated log-probabilities, (N, V)."""
        return self._log_p(self._encode(X))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return calibrated probabilities, (N, V)."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any, *, abstain: float | AbstainRule | None = None) -> np.ndarray:
        """Return the class of the nearest center, (N,).

        Args:
            X: as for `fit`.
            abstain: a rule of `abstain`, or the least probability for an answer. Rows below it get None, in an array
                of objects.
        """
        log_p_NV = self.predict_log_proba(X)
        found = self.classes_[log_p_NV.argmax(axis=1)]
        if abstain is None:
            return found
        threshold = abstain.threshold if isinstance(abstain, AbstainRule) else float(abstain)
        if not 0 <= threshold <= 1:
            raise ValueError(
                f"`abstain` must be a probability from 0 to 1, got {threshold}; take one from `abstain()`."
            )
        answers = found.astype(object)
        answers[np.exp(log_p_NV.max(axis=1)) < threshold] = None
        return answers

    def abstain(
        self, X: Any = None, y: Any = None, *, accuracy: float | None = None, coverage: float | None = None
    ) -> AbstainRule:
        """Return the rule that gives a wanted accuracy on as many rows as possible, or answers a wanted share.

        Args:
            X: rows that were not in `fit`. None means the held-out rows of its own cross-validation.
            y: their classes.
            accuracy: the wanted share of right answers among the answered rows.
            coverage: the wanted share of answered rows.
        """
        check_is_fitted(self)
        if X is not None:
            places = {label: place for place, label in enumerate(self.classes_.tolist())}
            labels_N = np.array([places.get(one, -1) for one in column_or_1d(y).tolist()])
            return find_rule(self.predict_log_proba(X), labels_N, accuracy=accuracy, coverage=coverage)
        if self._held_out is None:
            raise ValueError(
                "`abstain` must have rows that the model was not fitted to, got none, because `fit` held none out; "
                'pass X and y, or fit with temperature="auto" and at least 3 rows of each class.'
            )
        log_p_KV = with_temperature(self._held_out.log_p, self.temperature_)
        labels_K = self._rows.y_N.numpy()[self._held_out.places]
        return find_rule(log_p_KV, labels_K, accuracy=accuracy, coverage=coverage)

    @overload
    def explain(self, X: Sequence[float], *, nearest: int = 3) -> Explanation: ...
    @overload
    def explain(self, X: Any, *, nearest: int = 3) -> Any: ...
    def explain(self, X: Any, *, nearest: int = 3) -> Any:
        """Return why a row belongs to its class, as an `Explanation`; for several rows a list of them.

        Args:
            X: one row (a Series or one-dimensional) or several; with `features` always several.
            nearest: how many near training rows to name.
        """
        check_is_fitted(self)
        single = self.features is None and getattr(X, "ndim", np.ndim(X)) == 1
        if single:
            X = X.to_frame().T.infer_objects() if hasattr(X, "to_frame") else np.asarray(X)[None]
        x_ND = self._encode(X)
        found = [self._explain(x_D, operator.index(nearest)) for x_D in x_ND]
        return found[0] if single else found

    def _explain(self, x_D: np.ndarray, nearest: int) -> Explanation:
        p_V = np.exp(self._log_p(x_D[None])[0])
        with torch.no_grad():
            inner_ND = self._model.layers(torch.cat([torch.tensor(x_D[None]), self._rows.x_ND]))
            distance_V = self._model.head.distance(inner_ND[0]).numpy()
            apart_N = (inner_ND[1:] - inner_ND[0]).norm(dim=1).numpy()
        winner, runner_up = np.argsort(distance_V, kind="stable")[:2]
        near = np.argsort(apart_N, kind="stable")[:nearest]
        labels = self.classes_.tolist()
        return Explanation(
            predicted=labels[winner],
            runner_up=labels[runner_up],
            probability=float(p_V[winner]),
            runner_up_probability=float(p_V[runner_up]),
            distance=float(distance_V[winner]),
            runner_up_distance=float(distance_V[runner_up]),
            difference=float(distance_V[runner_up] ** 2 - distance_V[winner] ** 2),
            reasons=() if self.hidden is not None else self._reasons(x_D, winner, runner_up),
            nearest=tuple(
                NearRow(self._row_labels[place], labels[int(self._rows.y_N[place])], float(apart_N[place]))
                for place in near
            ),
        )

    def _reasons(self, x_D: np.ndarray, winner: int, runner_up: int) -> tuple[Reason, ...]:
        w_VD = self._model.head.centers.numpy()
        part_D = np.square(x_D - w_VD[runner_up]) - np.square(x_D - w_VD[winner])
        shown = self._columns.in_units(np.stack([x_D, w_VD[winner], w_VD[runner_up]]))
        reasons = []
        for column, place in zip(self._columns.columns, self._columns.places, strict=True):
            value, own, other = shown[:, place]
            if column.categories:
                best = int(value.argmax())
                seen = value[best] > 0.999
                told = (column.categories[best] if seen else "unknown", float(own[best]), float(other[best]))
            else:
                told = (float(value[0]), float(own[0]), float(other[0]))
            reasons.append(Reason(column.name, *told, part=float(part_D[place].sum())))
        return tuple(sorted(reasons, key=lambda reason: -abs(reason.part)))

    def _log_p(self, x_ND: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return with_temperature(self._model(torch.tensor(x_ND)).numpy(), self.temperature_)

    def _encode(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return self._columns.encode(self._read(X, reset=False)[0])

    def _read(self, X: Any, *, reset: bool) -> tuple[list[np.ndarray], list[str]]:
        """Return the columns of X and their names; with `features`, the columns of what that returns."""
        if self.features is not None:
            x_ND = extract(self.features, X)
            if not reset and x_ND.shape[1] != len(self._columns.columns):
                raise ValueError(
                    f"`features` must return {len(self._columns.columns)} numbers per row, as in `fit`, got "
                    f"{x_ND.shape[1]}; use the same ones."
                )
            return list(x_ND.T), [f"feature {place}" for place in range(x_ND.shape[1])]
        if is_table(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
            if not len(X) or not X.shape[1]:
                raise ValueError(f"X must have rows and columns, got shape {X.shape}; look at how it was read.")
            names = [str(name) for name in X.columns]
            return plain_columns(X, names), names
        try:
            x_ND = validate_data(self, X, reset=reset, dtype=np.float64, ensure_all_finite=False)
        except ValueError as error:
            if "could not convert string" not in str(error):
                raise
            raise ValueError(
                f"X must hold numbers, got text ({error}); pass columns of text or categories in a DataFrame, or free "
                "text with `features`."
            ) from None
        names = list(getattr(self, "feature_names_in_", map(str, range(x_ND.shape[1]))))
        return plain_columns(x_ND, names), names

    def _weights(self, sample_weight: Any, y_N: np.ndarray) -> np.ndarray:
        weight_N = _check_sample_weight(sample_weight, y_N, dtype=np.float64, ensure_non_negative=True)
        if self.class_weight is not None:
            counted = weight_N > 0
            weight_N[counted] *= compute_sample_weight(self.class_weight, y_N[counted])
        return weight_N

    def _check_classes(self) -> None:
        if len(self.classes_) < 2:
            raise ValueError(
                f"y must have at least 2 classes, got one class ({', '.join(map(str, self.classes_))}) in the rows "
                "with a weight above 0; add rows of another class."
            )


def _distinct(x_ND: np.ndarray, codes_N: np.ndarray, weight_N: np.ndarray) -> tuple[Rows, np.ndarray]:
    """Merge equal rows of one class and add their weights; return them, and the place of the first of each."""
    _, first, inverse = np.unique(np.column_stack([codes_N, x_ND]), axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)  # as in the table
    merged = np.bincount(inverse.reshape(-1), weights=weight_N)[order]
    first = first[order]
    return Rows(torch.tensor(x_ND[first]), torch.tensor(codes_N[first]), torch.tensor(merged)), first


def _warn_not_converged(max_iter: int) -> None:
    import warnings

    warnings.warn(
        f"training must reach a minimum, but did not in {max_iter} iterations; raise `max_iter` or `pull`.",
        ConvergenceWarning,
        stacklevel=3,
    )
