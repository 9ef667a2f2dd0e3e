"""Functions and metrics take what holds numbers: tensors, arrays, lists and pandas give one value."""

from typing import Any

import numpy as np
import pytest
import torch

from lightning_tpauc import ExactObjective, TwoWayPartialAUROC, functional

GENERATOR = torch.Generator().manual_seed(0)
SCORES = torch.rand(40, generator=GENERATOR, dtype=torch.float64)
LABELS = (torch.rand(40, generator=GENERATOR) < 0.4).long()
COLUMNS = torch.rand(40, 3, generator=GENERATOR, dtype=torch.float64)
CLASSES = torch.randint(0, 3, (40,), generator=GENERATOR)
GROUPS = torch.arange(40) // 2
POS, NEG = SCORES[LABELS == 1], SCORES[LABELS == 0]
MAP = functional.fit_calibration(SCORES, LABELS)


def pandas(tensor, dtype=None):
    module = pytest.importorskip("pandas")
    return (module.Series if tensor.ndim == 1 else module.DataFrame)(tensor.numpy(), dtype=dtype)


KINDS = {
    "array": torch.Tensor.numpy,
    "big-endian floats": lambda t: t.numpy().astype(">f8"),
    "list": torch.Tensor.tolist,
    "tuple": lambda t: tuple(t.tolist()),
    "pandas": pandas,
    "nullable pandas": lambda t: pandas(t, "Float64" if t.is_floating_point() else "Int64"),
}

area, interval = functional.two_way_partial_auroc, functional.bootstrap_interval
several: Any = {"task": "multiclass", "num_classes": 3, "average": None}
CALLS = {
    "two_way_partial_auroc": (area, SCORES, LABELS),
    "of classes": (lambda p, t: area(p, t, **several), COLUMNS, CLASSES),
    "weighted": (lambda p, t, w: area(p, t, sample_weight=w), SCORES, LABELS, COLUMNS[:, 0]),
    "of groups": (lambda p, t, g: interval(p, t, num_resamples=9, groups=g), SCORES, LABELS, GROUPS),
    "fit_calibration": (lambda p, t: functional.fit_calibration(p, t)[1:], SCORES, LABELS),
    "calibrated_probability": (lambda p: functional.calibrated_probability(p, MAP), SCORES),
    "count_decisions": (lambda p, t: functional.count_decisions(p, t, 0.5), SCORES, LABELS),
    "decision_threshold": (functional.decision_threshold, SCORES, LABELS),
    "fpr_at_min_tpr": (functional.fpr_at_min_tpr, SCORES, LABELS),
    "tpr_at_max_fpr": (functional.tpr_at_max_fpr, SCORES, LABELS),
    "precision_at_alert_rate": (lambda p, t: functional.precision_at_alert_rate(p, t, 0.2), SCORES, LABELS),
    "roc_polyline": (functional.roc_polyline, SCORES, LABELS),
    "exact_duals": (functional.exact_duals, POS, NEG),
    "tpauc_objective": (functional.tpauc_objective, POS, NEG),
    "objective_ratio": (functional.objective_ratio, POS, NEG),
    "pairwise_terms": (functional.pairwise_terms, POS, NEG, torch.zeros_like(POS)),
    "TwoWayPartialAUROC": (TwoWayPartialAUROC(), SCORES, LABELS),
    "TwoWayPartialAUROC of classes": (TwoWayPartialAUROC(**several), COLUMNS, CLASSES),
    "ExactObjective": (ExactObjective(), SCORES, LABELS),
}


def numbers(value):
    """All numbers in what a function returns."""
    if isinstance(value, tuple):
        return np.concatenate([np.empty(0), *map(numbers, value)])
    return np.atleast_1d(np.asarray(value, dtype=float)) if value is not None else np.empty(0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CALLS)
def test_value_is_that_of_tensors(name, kind):
    function, *arguments = CALLS[name]
    found, expected = (numbers(function(*each)) for each in (map(KINDS[kind], arguments), arguments))
    assert expected.size
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
