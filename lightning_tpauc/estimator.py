"""A scikit-learn classifier, and a scorer for model selection among any."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.cli import OptimizerCallable
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import make_scorer
from sklearn.preprocessing import LabelBinarizer, StandardScaler
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from lightning_tpauc.algorithms import STACO, Algorithm
from lightning_tpauc.data import PosNegDataModule
from lightning_tpauc.data.labels import as_weights
from lightning_tpauc.data.parts import say_most_are_positive
from lightning_tpauc.data.splits import Split, check_shares
from lightning_tpauc.errors import ArgumentError, DataError, warn_on_rank_zero
from lightning_tpauc.functional import (
    Calibration,
    count_decisions,
    decision_threshold,
    fit_calibration,
    two_way_partial_auroc,
)
from lightning_tpauc.functional.checks import as_groups, check_count, check_rectangle
from lightning_tpauc.functional.operating_points import Criterion
from lightning_tpauc.lightning_fixes.undisturbed import undisturbed
from lightning_tpauc.models import MLP
from lightning_tpauc.module import TPAUCModule
from lightning_tpauc.scoring.forward import call_model, evaluation_mode, scores_of, shaped_scores

Floats = NDArray[np.float64]

#: Validations of a training, and the least number of steps between two.
_VALIDATIONS, _BETWEEN = 10, 25
#: Rows that are scored at once.
_ROWS = 8192
#: Rows are repeated to as many numbers as that.
_CELLS = 2**27


class TPAUCClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    r"""A classifier of scikit-learn that is trained to maximise two-way partial AUC.

    Inside are :class:`~lightning_tpauc.TPAUCModule` and Lightning's Trainer, without output, files or worker processes.
    Inputs are standardised, and missing ones (nan) get the mean of their column, as by scikit-learn's
    ``StandardScaler`` and ``SimpleImputer``. A stratified part of the rows validates: the weights that validate best
    are kept, and the same part gives the threshold and the probabilities. They are somewhat too good for that reason;
    ``calibration_fraction`` takes other rows, and so do scikit-learn's ``TunedThresholdClassifierCV`` and
    ``CalibratedClassifierCV``.

    With more than two classes, the model has an output for each class, which ranks it against all others.

    Args:
        min_tpr: lower bound of the true positive rate, in [0, 1).
        max_fpr: upper bound of the false positive rate, in (0, 1].
        backbone: what scores rows: a module that maps floats ``(N, n_features)`` to ``(N,)`` or ``(N, 1)``, or to
            ``(N, n_classes)`` for more than two classes, and that is copied; or what makes one, called as
            ``backbone(n_features)``, or ``backbone(n_features, num_labels=n_classes)``, such as
            :class:`~lightning_tpauc.models.Linear`. ``None``: :class:`~lightning_tpauc.models.MLP` with two hidden
            layers of 64 units.
        algorithm: what makes the training method, called as ``algorithm(min_tpr, max_fpr)``. ``None``:
            :class:`~lightning_tpauc.algorithms.STACO`.
        optimizer: maps parameters to a :class:`torch.optim.Optimizer`. ``None``: :class:`~lightning_tpauc.DampedAdam`.
        criterion: which threshold decides between two classes, see
            :func:`~lightning_tpauc.functional.decision_threshold`. ``None``: the score of probability 1/2 if its rates
            on the validating rows lie in the rectangle, else ``"youden"``.
        max_steps: steps of training, of 256 rows.
        validation_fraction: share of the rows that validate, in (0, 1).
        calibration_fraction: share of the rows that neither train nor validate and give the threshold and the
            probabilities, in (0, 1). ``None``: those that validate give them.
        random_state: seed or ``numpy.random.RandomState``. Fits with the same seed are equal, also if the rows come in
            another order. Global random numbers stay as they are; ``None`` takes its seed from NumPy's, as elsewhere.
        trainer: further arguments of Lightning's Trainer, such as ``{"accelerator": "gpu", "precision": 32}``. Without
            ``precision`` the weights are float64.

    Attributes:
        classes_: the classes, sorted. Of two, the second is the positive one.
        n_features_in_: number of columns.
        feature_names_in_: names of the columns, where a table was fitted whose names are text.
        model_: the trained backbone, for standardised inputs in float64.
        scaler_: the fitted ``StandardScaler``.
        threshold_: for two classes: a row is called positive if its score, the backbone's output, is at least that.
        calibration_: map from scores to probabilities, one for each output.
        best_validation_score_: two-way partial AUC of the rows that give the threshold; for several classes the mean.

    Example:
        >>> from sklearn.datasets import load_breast_cancer
        >>> X, y = load_breast_cancer(return_X_y=True, as_frame=True)
        >>> found = TPAUCClassifier(min_tpr=0.8, max_fpr=0.2, max_steps=100, random_state=0).fit(X, y == 0)
        >>> found.predict(X[:2]), found.predict_proba(X).shape
        (array([ True,  True]), (569, 2))
        >>> bool(tpauc_scorer(0.8, 0.2)(found, X, y == 0) > 0.9)
        True
    """

    def __init__(
        self,
        min_tpr: float = 0.5,
        max_fpr: float = 0.5,
        *,
        backbone: nn.Module | Callable[..., nn.Module] | None = None,
        algorithm: Callable[[float, float], Algorithm] | None = None,
        optimizer: OptimizerCallable | None = None,
        criterion: Criterion | None = None,
        max_steps: int = 1000,
        validation_fraction: float = 0.2,
        calibration_fraction: float | None = None,
        random_state: Any = None,
        trainer: Mapping[str, Any] | None = None,
    ) -> None:
        self.min_tpr, self.max_fpr, self.backbone, self.algorithm = min_tpr, max_fpr, backbone, algorithm
        self.optimizer, self.criterion, self.max_steps = optimizer, criterion, max_steps
        self.validation_fraction, self.calibration_fraction = validation_fraction, calibration_fraction
        self.random_state, self.trainer = random_state, trainer

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    # ---------------------------------------------------------------- training

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> TPAUCClassifier:
        """Train on rows.

        Args:
            X: numbers ``(N, n_features)``, nan where one is missing: an array, list or table.
            y: classes ``(N,)``, numbers or text.
            sample_weight: how much each row counts, ``(N,)``, at least 0: a row of weight 2 is a row that is there
                twice. Others decide how often a row is drawn, and what it counts for the threshold; probabilities are
                fitted without them. With more than two classes weights have to be whole numbers.
            groups: rows of one group, such as a patient, all train or all validate: ``(N,)``, numbers or text.

        Raises:
            ArgumentError: if an argument is out of range.
            DataError: if there is one class only, or a weight or a group is missing or wrong.
        """
        check_rectangle(self.min_tpr, self.max_fpr)
        check_count(self.max_steps, "max_steps", 1)
        check_shares(validation_fraction=self.validation_fraction, calibration_fraction=self.calibration_fraction)
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_all_finite="allow-nan")
        check_classification_targets(y)
        weights = np.ones(len(X)) if sample_weight is None else as_weights(column_or_1d(sample_weight))
        grouped = None if groups is None else as_groups(column_or_1d(groups)).numpy()
        check_consistent_length(X, weights, grouped)
        X, y, weights, grouped = _ordered(X, y, weights, grouped)
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            found = f"one class, {self.classes_.tolist()}" if len(y) else "none"
            raise DataError(f"Expected two classes of rows whose weight is not zero, but got {found}.")
        labels = LabelBinarizer().fit(self.classes_).transform(y).astype(np.int8).squeeze()  # two have one column
        other, *_, positive = self.classes_.tolist()
        say_most_are_positive(labels, f"rows are {positive!r}", f"y == {other!r}")
        seed = int(check_random_state(self.random_state).randint(2**31))
        try:
            split = Split(self.validation_fraction, calibration_fraction=self.calibration_fraction, seed=seed)
            parts = split.cut(labels, grouped)
        except DataError as error:
            warn_on_rank_zero(f"All rows train and validate, so the validation value is too good. {error}")
            parts = dict.fromkeys(("train", "val"), np.arange(len(labels)))
        train, val, chooses = parts["train"], parts["val"], parts.get("calibration", parts["val"])
        drawn, counted = (None if weights is None else weights[rows] for rows in (train, chooses))
        with np.errstate(invalid="ignore"):  # a column may have no number
            self.scaler_ = StandardScaler().fit(X[train], sample_weight=drawn)
        with undisturbed():
            torch.manual_seed(seed)
            self.model_ = self._make_model()
            # not pairs of arrays, in which a column that equals the labels would be refused
            sets = [TensorDataset(self._standardised(X[rows]), torch.from_numpy(labels[rows])) for rows in (train, val)]
            module = self._train(sets, drawn, seed)
        if module._is_squashed:
            warn_on_rank_zero("`backbone` ends in a sigmoid or softmax. Leave it out: training needs raw scores.")
        self._decide_by(self._scores(X[chooses]), torch.from_numpy(labels[chooses]), counted)
        return self

    def _make_model(self) -> nn.Module:
        backbone, outputs = self.backbone or partial(MLP, hidden_features=(64, 64)), len(self.classes_)
        if isinstance(backbone, nn.Module):
            model = copy.deepcopy(backbone)
        else:
            model = backbone(self.n_features_in_, **({"num_labels": outputs} if outputs > 2 else {}))
        # in float64 the score of a row does not depend on the rows beside it
        return model if "precision" in (self.trainer or {}) else model.double()

    def _train(self, sets: list[TensorDataset], weights: Floats | None, seed: int) -> TPAUCModule:
        epoch = max(_BETWEEN, -(-self.max_steps // _VALIDATIONS))
        data = PosNegDataModule(*sets, sample_weight=weights, steps_per_epoch=epoch, seed=seed, batch_size=_ROWS)
        make = self.algorithm or STACO
        if isinstance(make, Algorithm):
            raise ArgumentError(f"Expected `algorithm` to make one, as `partial(STACO, margin=1)`, but got {make}.")
        module = TPAUCModule(self.model_, make(self.min_tpr, self.max_fpr), self.optimizer)
        given = {"accelerator": "cpu", "devices": 1, "max_epochs": -1, "max_steps": self.max_steps}
        quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
        Trainer(**{**given, **quiet, **(self.trainer or {})}).fit(module, data)
        return module

    def _decide_by(self, scores: Tensor, labels: Tensor, weights: Floats | None) -> None:
        """Choose the threshold and the probabilities on validating rows."""
        rectangle, outputs = (self.min_tpr, self.max_fpr), len(self.classes_)
        task: Any = {} if outputs == 2 else {"task": "multilabel", "num_labels": outputs}
        area = two_way_partial_auroc(scores, labels, *rectangle, sample_weight=weights, **task)
        self.best_validation_score_ = float(area)
        if self.best_validation_score_ == 0:
            warn_on_rank_zero("TPAUC is 0: the validating rows' ROC curve misses the rectangle. Ask for a larger one.")
        columns = [(scores, labels)] if outputs == 2 else list(zip(scores.T, labels.T, strict=True))
        self.calibration_ = [_calibration(*column) for column in columns]
        if outputs > 2:
            return
        _, slope, shift = self.calibration_[0]
        self.threshold_ = float(-shift / slope)
        met = slope > 0 and count_decisions(scores, labels, self.threshold_, weights).lies_in(*rectangle)
        if self.criterion or not met:
            criterion = self.criterion or "youden"
            chosen: Any = decision_threshold(scores, labels, *rectangle, criterion, sample_weight=weights)
            # infinite where it is best to call nobody positive, and scores less infinity would rank nobody
            self.threshold_ = min(chosen.threshold, float(np.nextafter(float(scores.max()), np.inf)))

    # ---------------------------------------------------------------- predicting

    def decision_function(self, X: Any) -> Floats:
        """Scores of rows.

        Args:
            X: numbers ``(N, n_features)``, nan where one is missing.

        Returns:
            For two classes ``(N,)``: how far the score is above the threshold, in favour of the second class. For more
            ``(N, n_classes)``: the log-odds of each against all others.
        """
        scores = self._checked_scores(X)
        return (scores - self.threshold_ if len(self.classes_) == 2 else self._log_odds(scores)).numpy()

    def predict_proba(self, X: Any) -> Floats:
        """Probabilities of all classes, ``(N, n_classes)``, calibrated on the validating rows by Platt's sigmoid.

        Args:
            X: numbers ``(N, n_features)``, nan where one is missing.
        """
        odds = self._log_odds(self._checked_scores(X))
        probability = (torch.stack([-odds, odds], dim=1) if odds.ndim == 1 else odds).sigmoid()
        return (probability / probability.sum(dim=1, keepdim=True)).numpy()

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of each row, ``(N,)``: by ``threshold_`` for two classes, by the highest log-odds for more.

        Args:
            X: numbers ``(N, n_features)``, nan where one is missing.
        """
        decision = self.decision_function(X)
        return self.classes_[decision.argmax(1) if decision.ndim == 2 else (decision >= 0) * 1]

    def _checked_scores(self, X: Any) -> Tensor:
        check_is_fitted(self, "calibration_")
        return self._scores(validate_data(self, X, reset=False, dtype=np.float64, ensure_all_finite="allow-nan"))

    def _standardised(self, X: Floats) -> Tensor:
        """Inputs of the backbone in the dtype of its weights; nan becomes 0, which stands for the mean."""
        return torch.from_numpy(np.nan_to_num(self.scaler_.transform(X), nan=0.0)).to(next(self.model_.parameters()))

    def _scores(self, X: Floats) -> Tensor:
        names = self.classes_.astype(str).tolist() if len(self.classes_) > 2 else None
        with evaluation_mode(self.model_):
            batches = torch.split(self._standardised(X), _ROWS)
            parts = [shaped_scores(scores_of(call_model(self.model_, batch)), names) for batch in batches]
        return torch.cat(parts).double().cpu()

    def _log_odds(self, scores: Tensor) -> Tensor:
        slope, shift = (torch.stack(each) for each in zip(*(one[1:] for one in self.calibration_), strict=True))
        return scores * slope + shift


def _ordered(X: Floats, y: Any, weights: Floats, groups: Any) -> tuple[Floats, Any, Any, Any]:
    """Rows in an order of their own, as often as whole weights say; other weights, if they differ, are left."""
    codes = np.unique(y, return_inverse=True)[1]
    whole = not (weights % 1).any() and weights.sum() * X.shape[1] <= _CELLS
    rows = np.repeat(np.arange(len(y)), weights.astype(np.int64) if whole else weights > 0)
    left = None if whole or (weights[rows] == weights[rows[0]]).all() else weights
    others = [np.zeros(len(y)) if column is None else column for column in (left, groups)]
    table = np.column_stack([codes, *others, X])[rows] + 0.0  # there are -0.0 and several nan
    table[np.isnan(table)] = np.nan
    rows = rows[np.argsort(table.view(np.dtype((np.void, table.strides[0]))).ravel())]
    return X[rows], y[rows], *(None if column is None else column[rows] for column in (left, groups))


def _calibration(scores: Tensor, labels: Tensor) -> Calibration:
    """Platt's sigmoid; where it would fall, the share of positives for every score."""
    try:
        return fit_calibration(scores, labels, "sigmoid")
    except ArgumentError:
        share = (labels.sum().double() + 1) / (len(labels) + 2)
        return Calibration("sigmoid", torch.zeros_like(share), share.logit())


def tpauc_scorer(min_tpr: float = 0.5, max_fpr: float = 0.5) -> Any:
    """A scorer for scikit-learn's model selection: the two-way partial AUC of any classifier.

    It ranks by ``decision_function``, or by ``predict_proba`` where there is none. The value is that of
    :func:`~lightning_tpauc.functional.two_way_partial_auroc`; for more than two classes, the mean over them.
    Of two, the second of ``classes_`` is the positive one.

    Args:
        min_tpr: lower bound of the true positive rate, in [0, 1).
        max_fpr: upper bound of the false positive rate, in (0, 1].

    Raises:
        ArgumentError: if a bound is out of range.

    Example:
        >>> from sklearn.datasets import load_breast_cancer
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.model_selection import cross_val_score
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> cross_val_score(LogisticRegression(C=1e-6), X, y, scoring=tpauc_scorer(0.8, 0.2)).shape
        (5,)
    """
    check_rectangle(min_tpr, max_fpr)
    return make_scorer(_tpauc, response_method=("decision_function", "predict_proba"), min_tpr=min_tpr, max_fpr=max_fpr)


def _tpauc(y_true: Any, y_score: Any, min_tpr: float, max_fpr: float, sample_weight: Any = None) -> float:
    classes, codes = np.unique(y_true, return_inverse=True)
    number = 2 if y_score.ndim == 1 else y_score.shape[1]
    if len(classes) != number:
        raise DataError(f"Expected rows of {number} classes, but all are of {classes.tolist()}. Stratify the folds.")
    task: dict[str, Any] = {} if y_score.ndim == 1 else {"task": "multiclass", "num_classes": len(classes)}
    return float(two_way_partial_auroc(y_score, codes, min_tpr, max_fpr, **task, sample_weight=sample_weight))
