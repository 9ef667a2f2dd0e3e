r"""From scores to probabilities: a monotone map that SciPy fits and torch applies.

scikit-learn would do as well, but whatever it fits it changes Python's filters of warnings for a moment. Python then
repeats all warnings of other code that it shows once, after every validation.
"""

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import as_pair, as_tensor, check_choice, eager
from lightning_tpauc.functional.roc import split_classes

CalibrationMethod = Literal["isotonic", "sigmoid"]
METHODS = ("isotonic", "sigmoid", "auto")
#: Of the rarer class. With fewer, isotonic maps are worse on new examples where a sigmoid fits, by a tenth of the log
#: loss with 20; with more they are level there, and better where it does not fit.
_MANY = 1000


class Calibration(NamedTuple):
    r"""A map from scores to probabilities that never falls.

    Attributes:
        method: ``"isotonic"``: straight lines between points; ``"sigmoid"``: :math:`\sigma(a x + b)`.
        first: float64 tensor: for isotonic the scores of the points; for sigmoid a, shape ``()``.
        second: float64 tensor of the same shape: for isotonic the probabilities of the points; for sigmoid b.
    """

    method: CalibrationMethod
    first: Tensor
    second: Tensor


@eager
def fit_calibration(preds: Any, target: Any, method: CalibrationMethod | Literal["auto"] = "auto") -> Calibration:
    r"""Fit probabilities to scores of examples whose class is known.

    The probabilities are right where positives are as frequent as among these examples.

    Args:
        preds: scores, a tensor, array or list of any shape and real dtype, of both classes and without nan.
        target: labels of the same shape; rows labelled neither 1 nor 0 are left out.
        method: ``"isotonic"``: the best of all maps that never fall, for many examples; ``"sigmoid"``: Platt's
            :math:`\sigma(a x + b)`, for few; ``"auto"``: isotonic from 1000 examples of each class on, else sigmoid.
            Probabilities are not 0 or 1: isotonic ones are fitted with one more positive at the lowest score and one
            more negative at the highest, much as Platt's targets are.

    Raises:
        ArgumentError: if the method is unknown, a class is missing, a score is not finite, or higher scores mean fewer
            positives, so that a sigmoid would turn the order around.

    Example:
        >>> preds, target = torch.tensor([-1.0, 0.0, 1.0, 2.0]), torch.tensor([0, 1, 0, 1])
        >>> calibrated_probability(preds, fit_calibration(preds, target, "isotonic")).tolist()
        [0.5, 0.5, 0.5, 0.5]
        >>> fit_calibration(preds, target).method
        'sigmoid'
    """
    check_choice(method, "calibration", METHODS)
    pos, neg = (scores.cpu().double() for scores in split_classes(*as_pair(preds, target)))
    scores = torch.cat([pos, neg])
    if not pos.numel() or not neg.numel() or not bool(scores.isfinite().all()):
        what = "a class has no example" if not pos.numel() or not neg.numel() else "some scores are not finite"
        raise ArgumentError(f"Expected finite scores of both classes to calibrate on, but {what}.")
    labels = torch.cat([torch.ones_like(pos), torch.zeros_like(neg)])
    if method == "sigmoid" or (method == "auto" and min(len(pos), len(neg)) < _MANY):
        return _fit_sigmoid(scores, labels)
    return _fit_isotonic(scores.numpy(), labels.numpy())


def _fit_isotonic(scores: np.ndarray, labels: np.ndarray) -> Calibration:
    """The best map that never falls; of every piece on which it is constant the ends are kept.

    One more positive with the lowest score, and one more negative with the highest, keep it off 0 and 1.
    """
    from scipy.optimize import isotonic_regression  # takes a while to import

    scores = np.concatenate([scores, [scores.min(), scores.max()]])
    points, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    values = isotonic_regression(np.bincount(place, [*labels, 1.0, 0.0]) / counts, weights=counts).x
    rises = np.concatenate([[True], np.diff(values) != 0, [True]])
    ends = rises[:-1] | rises[1:]
    return Calibration("isotonic", torch.from_numpy(points[ends]), torch.from_numpy(values[ends]))


def _fit_sigmoid(scores: Tensor, labels: Tensor) -> Calibration:
    """Platt's fit: each class's target is moved away from 0 or 1 as one more example of the other would."""
    from scipy.optimize import minimize  # takes a while to import

    num_pos = labels.sum()
    target = torch.where(labels == 1, (num_pos + 1) / (num_pos + 2), 1 / (len(labels) - num_pos + 2)).numpy()
    # in units of the spread, so that the solver meets the same problem whatever unit scores have
    centre, spread = scores.mean(), scores.std().clamp(min=torch.finfo(torch.float64).tiny)
    x = ((scores - centre) / spread).numpy()

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        z = parameters[0] * x + parameters[1]
        error = np.exp(-np.logaddexp(0.0, -z)) - target
        return float((np.logaddexp(0.0, z) - target * z).mean()), np.array([(error * x).mean(), error.mean()])

    found = minimize(loss, np.zeros(2), jac=True, method="BFGS", options={"gtol": 1e-9}).x
    slope = torch.tensor(found[0], dtype=torch.float64) / spread
    if not slope > 0:
        text = f"A sigmoid would fall (slope {float(slope):.2g}): scores rank positives below negatives on the whole"
        raise ArgumentError(f"{text}. Use calibration='isotonic', or train longer.")
    return Calibration("sigmoid", slope, torch.tensor(found[1], dtype=torch.float64) - slope * centre)


@eager
def calibrated_probability(scores: Any, calibration: Calibration) -> Tensor:
    """Probabilities of scores: float64 tensor of the same shape, on the same device; nan where a score is nan.

    Args:
        scores: a tensor, array or list of any shape and real dtype; beyond the scores that were fitted, isotonic ones
            are constant.
        calibration: see :func:`fit_calibration`.

    Example:
        >>> halves = Calibration("sigmoid", torch.tensor(1.0), torch.tensor(0.0))
        >>> calibrated_probability(torch.tensor([0.0]), halves)
        tensor([0.5000], dtype=torch.float64)
    """
    x = as_tensor(scores, "scores").detach().double()
    first, second = (each.to(x) for each in (calibration.first, calibration.second))
    if calibration.method == "sigmoid":
        return (first * x + second).sigmoid()
    if first.numel() == 1:  # all scores were equal
        return torch.where(x.isnan(), x, second)
    right = torch.bucketize(x, first, right=True).clamp(1, first.numel() - 1)
    x0, x1, y0, y1 = first[right - 1], first[right], second[right - 1], second[right]
    return y0 + ((x - x0) / (x1 - x0)).clamp(0, 1) * (y1 - y0)
