"""Several labels, some of them unmeasured, and several classes: a value each, and their average."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_curve
from torchmetrics import MetricCollection

from lightning_tpauc.errors import ArgumentError, TPAUCWarning
from lightning_tpauc.functional import (
    two_way_partial_auroc,
)
from lightning_tpauc.metrics import (
    TwoWayPartialAUROC,
)
from tests.helpers.tolerances import assert_close

K = 4
LABELS_K, CLASSES_K = {"task": "multilabel", "num_labels": K}, {"task": "multiclass", "num_classes": K}


def of_labels(preds, target, *bounds, **options):
    return two_way_partial_auroc(preds, target, *bounds, **{**LABELS_K, "num_labels": preds.shape[1], **options})


def of_classes(preds, target, *bounds, **options):
    return two_way_partial_auroc(preds, target, *bounds, **{**CLASSES_K, "num_classes": preds.shape[1], **options})


def label_metric(count, *bounds, **options):
    return TwoWayPartialAUROC(*bounds, task="multilabel", num_labels=count, **options)


def class_metric(count, *bounds, **options):
    return TwoWayPartialAUROC(*bounds, task="multiclass", num_classes=count, **options)


THRESHOLDS = [-1.0, 0.0, 0.5, 1.0, 2.0]
EITHER = pytest.mark.parametrize("thresholds", [None, THRESHOLDS], ids=["exact", "binned"])


def scored(size=90, seed=0, missing=0.3):
    """Scores, targets with nan for what was not measured, and the same with -1."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(2, (size, K), generator=generator)
    scores = torch.randn(size, K, generator=generator) + target
    measured = torch.rand(size, K, generator=generator) >= missing
    return scores, target.double().masked_fill(~measured, math.nan), target.masked_fill(~measured, -1)


def classified(size=90, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(size, K, generator=generator)
    return scores, (scores + torch.randn(size, K, generator=generator)).argmax(1)


def filled(metric, *parts):
    for part in parts:
        metric.update(*part)
    return metric


# ---------------------------------------------------------------- values


@EITHER
def test_each_label_is_ranked_over_its_own_measured_entries(thresholds):
    scores, with_nan, with_index = scored()
    options = {"min_tpr": [0.1, 0.2, 0.3, 0.4], "max_fpr": np.array([0.9, 0.8, 0.7, 0.6]), "thresholds": thresholds}
    values = of_labels(scores, with_nan, average=None, **options)
    for k in range(K):
        kept = with_index[:, k] >= 0
        rectangle = (options["min_tpr"][k], options["max_fpr"][k])
        alone = two_way_partial_auroc(scores[kept, k], with_index[kept, k], *rectangle, thresholds)
        assert torch.equal(values[k], alone)
    assert torch.equal(values, of_labels(scores, with_index, average="none", ignore_index=-1, **options))
    metric = label_metric(K, average=None, **options)
    assert torch.equal(filled(metric, *zip(scores.split(20), with_nan.split(20), strict=True)).compute(), values)


# ---------------------------------------------------------------- labels without a class


@EITHER
def test_averages_leave_out_a_label_without_a_class_and_name_it(thresholds):
    scores, _, target = scored(missing=0.0)
    target[:, 1], target[:, 3] = 0, -1
    options = {"thresholds": thresholds, "ignore_index": -1, "min_tpr": 0.0, "max_fpr": 1.0}
    with pytest.warns(TPAUCWarning) as caught:
        macro = of_labels(scores, target, **options)
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 2
    for label, missing in (("1", "positive example"), ("3", "example")):
        (message,) = (m for m in messages if f"of label {label} is nan: there was no {missing} to rank" in m)
        assert message.endswith("The macro average leaves it out.")
    with pytest.warns(TPAUCWarning):
        each = of_labels(scores, target, average=None, **options)
    with pytest.warns(TPAUCWarning):
        weighted = of_labels(scores, target, average="weighted", **options)
    assert each.isnan().tolist() == [False, True, False, True]
    assert_close(macro, each[[0, 2]].mean())
    support = (target == 1).sum(0)[[0, 2]].double()
    assert_close(weighted, (each[[0, 2]] * support).sum() / support.sum())


@EITHER
def test_nan_of_one_label_leaves_the_others(thresholds):
    scores, _, target = scored(missing=0.0)
    broken = scores.clone()
    broken[3, 2] = math.nan
    for each in (
        label_metric(K, average=None, thresholds=thresholds, validate_args=False),
        lambda *batch: of_labels(*batch, average=None, thresholds=thresholds, validate_args=False),
    ):
        with pytest.warns(TPAUCWarning, match="label 2 is nan: some scores are nan"):
            values = each(broken, target)
        assert values.isnan().tolist() == [False, False, True, False]
    with pytest.raises(ArgumentError, match="1 of 360 scores are nan"):
        label_metric(K).update(broken, target)


# ---------------------------------------------------------------- which class, and which arguments


LABELS = {"task": "multilabel", "num_labels": 3}
CLASSES = {"task": "multiclass", "num_classes": 3}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "labels"}, "`task` to be one of 'binary', 'multiclass', 'multilabel', but got 'labels'"),
        ({"task": "multilabel"}, "Expected `num_labels` with `task='multilabel'` and only there, but got None"),
        ({"num_labels": 3}, "`num_labels` with `task='multilabel'` and only there, but got 3 with `task='binary'`"),
        ({**LABELS, "min_tpr": "multilabel"}, "`min_tpr` to be a number"),
        ({**LABELS, "average": "micro"}, "`average` to be one of 'macro', 'weighted', 'none', None, but got 'micro'"),
        ({**CLASSES, "num_classes": 0}, "`num_classes` to be a whole number of at least 1, but got 0"),
        ({**LABELS, "min_tpr": [0.1, 0.2]}, "`min_tpr` to be one number, or one for each of the 3 labels, but got 2"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        TwoWayPartialAUROC(**arguments)
    with pytest.raises(ArgumentError, match=message):
        two_way_partial_auroc(torch.rand(4), torch.tensor([0, 1, 0, 1]), **arguments)


@pytest.mark.parametrize(
    ("task", "preds", "target", "message"),
    [
        (LABELS, torch.full((4, 2), 0.25), torch.ones(4, 2), r"here \(N, 3\), but got \(4, 2\) and \(4, 2\)"),
        (LABELS, torch.full((4, 3, 2), 0.25), torch.ones(4, 3, 2), "Other dimensions hold examples too"),
        (
            CLASSES,
            torch.full((4, 3), 0.25),
            torch.ones(4, 3).long(),
            r"`target` of shape \(N,\), but got \(4, 3\) and \(4, 3\)",
        ),
    ],
)
@pytest.mark.parametrize("validate_args", [True, False])
def test_shapes_are_always_checked(task, preds, target, message, validate_args):
    for thresholds in (None, THRESHOLDS):
        with pytest.raises(ArgumentError, match=message):
            TwoWayPartialAUROC(thresholds=thresholds, validate_args=validate_args, **task).update(preds, target)
        with pytest.raises(ArgumentError, match=message):
            two_way_partial_auroc(preds, target, thresholds=thresholds, validate_args=validate_args, **task)


# ---------------------------------------------------------------- in company


@EITHER
def test_metrics_that_leave_out_other_classes_in_one_collection(thresholds):
    """The first batch does not hold the class that one of them ignores."""
    scores, target = classified()
    options = {"thresholds": thresholds, "min_tpr": 0.0, "max_fpr": 1.0}
    collection = MetricCollection(
        {"all": class_metric(K, **options), "some": class_metric(K, ignore_index=2, **options)}
    )
    order = torch.cat([(target != 2).nonzero()[:5, 0], torch.arange(90)])
    collection.update(scores[order[:5]], target[order[:5]])
    collection.update(scores[order[5:]], target[order[5:]])
    with pytest.warns(TPAUCWarning, match="label 2 is nan"):
        values = collection.compute()
    with pytest.warns(TPAUCWarning, match="label 2 is nan"):
        some = of_classes(scores[order], target[order], ignore_index=2, **options)
    assert torch.equal(values["some"], some)
    assert torch.equal(values["all"], of_classes(scores[order], target[order], **options))


# ---------------------------------------------------------------- curves


def test_the_curves_are_those_of_scikit_learn():
    scores, target = classified()
    fpr, tpr, thresholds = filled(class_metric(K), (scores, target)).roc()
    for c in range(K):
        every = roc_curve(target == c, scores[:, c].double(), drop_intermediate=False)
        own = list(zip(*(values[c].tolist() for values in (fpr, tpr, thresholds)), strict=True))
        assert set(own) <= set(zip(*(values.tolist() for values in every), strict=True))
        assert torch.trapezoid(tpr[c], fpr[c]).item() == pytest.approx(np.trapezoid(every[1], every[0]), rel=1e-12)


@pytest.fixture
def pyplot():
    mpl = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    mpl.use("Agg")
    yield pytest.importorskip("matplotlib.pyplot")
    mpl.pyplot.close("all")


@EITHER
def test_a_curve_and_a_value_for_each_label(pyplot, thresholds):
    scores, with_nan, _ = scored()
    metric = filled(label_metric(K, 0.5, 0.5, thresholds=thresholds), (scores, with_nan))
    figure, axes = pyplot.subplots()
    assert metric.plot(ax=axes) == (figure, axes)
    values = of_labels(scores, with_nan, average=None, thresholds=thresholds)
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert sorted(texts) == sorted([*(f"Label {k}: {value:.3f}" for k, value in enumerate(values)), texts[-1]])
    assert texts[-1] == "TPR ≥ 0.5, FPR ≤ 0.5"
    drawn = [line.get_xydata() for line in axes.lines[1:]]
    for curve, fpr, tpr in zip(drawn, *metric.roc()[:2], strict=True):
        assert torch.equal(torch.as_tensor(curve), torch.stack([fpr, tpr], dim=1))
