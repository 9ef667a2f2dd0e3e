"""What torchmetrics' own tester does with a metric: every metric in every way in which a metric is used.

Its tester is not part of the package that is installed. Values are compared with loops and with scikit-learn.
"""

import math
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_curve

from lightning_tpauc.functional import fpr_at_min_tpr, tpauc_objective, tpr_at_max_fpr, two_way_partial_auroc
from lightning_tpauc.metrics import ExactObjective, FPRAtMinTPR, TPRAtMaxFPR, TwoWayPartialAUROC
from tests.helpers.ddp import run_distributed
from tests.helpers.tolerances import assert_close
from tests.reference.tpauc import naive_binned_tpauc, naive_tpauc

NUM_BATCHES, BATCH_SIZE, COLUMNS = 4, 24, 3
THRESHOLDS = [-1.0, 0.0, 0.5, 1.0, 2.0]
IGNORED = -1
OBJECTIVE = (0.7, 0.5, "squared_hinge", 0.2)


class Case(NamedTuple):
    """A metric, its function, and a loop over positives and negatives, one for each column if there are columns."""

    make: Callable[..., Any]
    functional: Callable[..., Any]
    reference: Any
    task: str = "binary"
    average: str | None = None


def mean_of_pairs(pos, neg):
    k1, k2 = math.floor(0.3 * len(pos) + 1e-9), math.floor(0.5 * len(neg))
    hardest = [(n - p) for p in sorted(pos)[:k1] for n in sorted(neg)[-k2:]]
    return sum(max(0.0, 0.2 + t) ** 2 for t in hardest) / len(hardest)


def on_the_curve(pos, neg, at_fpr=None, at_tpr=None):
    fpr, tpr, _ = roc_curve([1] * len(pos) + [0] * len(neg), [*pos, *neg], drop_intermediate=False)
    return np.interp(at_fpr, fpr, tpr) if at_fpr else np.interp(-at_tpr, -tpr[::-1], fpr[::-1])


def objective(preds, target, ignore_index=None):
    return tpauc_objective(preds[target == 1].double(), preds[target == 0].double(), *OBJECTIVE)


def columns_case(task, average, thresholds):
    """Three columns, each with a rectangle of its own."""
    number = {"multilabel": "num_labels", "multiclass": "num_classes"}[task]
    lows, high = [0.3, 0.0, 0.6], 0.8
    options = {"task": task, number: COLUMNS, "average": average, "thresholds": thresholds}
    binned = partial(naive_binned_tpauc, thresholds=thresholds)
    reference = [partial(binned if thresholds else naive_tpauc, min_tpr=low, max_fpr=high) for low in lows]
    return Case(
        partial(TwoWayPartialAUROC, lows, high, **options),
        partial(two_way_partial_auroc, min_tpr=lows, max_fpr=high, **options),
        reference,
        task,
        average,
    )


CASES = {
    "exact": Case(
        partial(TwoWayPartialAUROC, 0.3, 0.8),
        partial(two_way_partial_auroc, min_tpr=0.3, max_fpr=0.8),
        lambda pos, neg: naive_tpauc(pos, neg, 0.3, 0.8),
    ),
    "binned": Case(
        partial(TwoWayPartialAUROC, 0.3, 0.8, THRESHOLDS),
        partial(two_way_partial_auroc, min_tpr=0.3, max_fpr=0.8, thresholds=THRESHOLDS),
        lambda pos, neg: naive_binned_tpauc(pos, neg, THRESHOLDS, 0.3, 0.8),
    ),
    "no bound": Case(
        partial(TwoWayPartialAUROC, 0.0, None),
        partial(two_way_partial_auroc, min_tpr=0.0, max_fpr=None),
        lambda pos, neg: naive_tpauc(pos, neg, 0.0, 1.0),
    ),
    "objective": Case(partial(ExactObjective, *OBJECTIVE), objective, mean_of_pairs),
    "tpr": Case(partial(TPRAtMaxFPR, 0.3), partial(tpr_at_max_fpr, max_fpr=0.3), partial(on_the_curve, at_fpr=0.3)),
    "fpr": Case(partial(FPRAtMinTPR, 0.7), partial(fpr_at_min_tpr, min_tpr=0.7), partial(on_the_curve, at_tpr=0.7)),
    **{
        f"{task} {average} {'binned' if thresholds else 'exact'}": columns_case(task, average, thresholds)
        for task, average, thresholds in [
            ("multilabel", None, None),
            ("multilabel", "macro", None),
            ("multilabel", "weighted", THRESHOLDS),
            ("multilabel", None, THRESHOLDS),
            ("multiclass", None, None),
            ("multiclass", "weighted", None),
            ("multiclass", "macro", THRESHOLDS),
        ]
    },
}
EACH = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def make_inputs(kind, task):
    generator = torch.Generator().manual_seed(7)
    shape = (NUM_BATCHES, BATCH_SIZE) if task == "binary" else (NUM_BATCHES, BATCH_SIZE, COLUMNS)
    target = torch.randint(2, shape, generator=generator)
    preds = torch.randn(shape, generator=generator) + target
    if task == "multiclass":
        target = (preds + torch.randn(shape, generator=generator)).argmax(-1)
    if kind == "ties":
        preds = preds.round()
    if kind == "ignored":
        target = target.where(torch.rand(target.shape, generator=generator) > 0.2, torch.tensor(IGNORED))
    return (preds.double() if kind == "float64" else preds), target


KINDS = ("plain", "ties", "ignored", "float64")
WITH = pytest.mark.parametrize("kind", KINDS)
INPUTS = {(kind, task): make_inputs(kind, task) for kind in KINDS for task in ("binary", "multilabel", "multiclass")}


def inputs_of(case, kind="plain"):
    return INPUTS[kind, case.task]


def expected(case, preds, target):
    preds = preds.double()
    if case.task == "binary":
        return case.reference(preds[target == 1].tolist(), preds[target == 0].tolist())
    preds, values, support = preds.reshape(-1, COLUMNS), [], []
    for k, reference in enumerate(case.reference):
        if case.task == "multilabel":
            is_pos, is_neg = (target.reshape(-1, COLUMNS)[:, k] == label for label in (1, 0))
        else:
            is_pos, is_neg = target.flatten() == k, (target.flatten() != k) & (target.flatten() != IGNORED)
        values.append(reference(preds[is_pos, k].tolist(), preds[is_neg, k].tolist()))
        support.append(int(is_pos.sum()))
    if case.average is None:
        return torch.tensor(values, dtype=torch.float64)
    return np.average(values, weights=support if case.average == "weighted" else None)


# ---------------------------------------------------------------- one process


@EACH
@WITH
def test_the_function(case, kind):
    for preds, target in zip(*inputs_of(case, kind), strict=True):
        assert_close(case.functional(preds, target, ignore_index=IGNORED), expected(case, preds, target))


@EACH
@WITH
@pytest.mark.parametrize("compute_on_cpu", [False, True])
@pytest.mark.parametrize("compute_with_cache", [False, True])
def test_the_class(case, kind, compute_on_cpu, compute_with_cache):
    metric = case.make(ignore_index=IGNORED, compute_on_cpu=compute_on_cpu, compute_with_cache=compute_with_cache)
    use(metric, case, inputs_of(case, kind))


def use(metric, case, inputs, rank=0, world_size=1):
    """The life of a metric, of which ``rank`` sees its share of the batches; returns its last value."""
    preds, target = inputs
    metric = pickle.loads(pickle.dumps(metric.clone()))  # noqa: S301  # our own
    for step in range(0, NUM_BATCHES, world_size):
        seen = slice(step, step + world_size) if metric.dist_sync_on_step else slice(step + rank, step + rank + 1)
        value = metric(preds[step + rank], target[step + rank])
        assert_close(value, expected(case, preds[seen], target[seen]))
        assert not value.requires_grad
    assert metric.update_count == NUM_BATCHES // world_size
    assert isinstance(hash(metric), int)
    assert metric.state_dict() == {}
    value = metric.compute()
    assert_close(value, expected(case, preds, target))
    assert torch.equal(metric.compute(), value)
    metric.reset()
    assert metric.update_count == 0
    metric.update(preds[rank], target[rank])
    seen = slice(world_size)
    assert_close(metric.compute(), expected(case, preds[seen], target[seen]))
    return value


@EACH
@pytest.mark.parametrize("as_dict", [False, True])
def test_stores_are_merged(case, as_dict):
    preds, target = inputs_of(case)
    metric, other = case.make(), case.make()
    metric.update(preds[0], target[0])
    other.update(preds[1], target[1])
    metric.merge_state(other.metric_state if as_dict else other)
    assert_close(metric.compute(), expected(case, preds[:2], target[:2]))
    assert_close(other.compute(), expected(case, preds[1], target[1]))
    metric.reset()
    assert_close(other.compute(), expected(case, preds[1], target[1]))


@EACH
@pytest.mark.parametrize("cast", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_a_cast_never_touches_what_was_collected(case, cast):
    preds, target = inputs_of(case)
    metric = case.make()
    metric.update(preds[:2].flatten(0, 1), target[:2].flatten(0, 1))
    before = {name: str(value) for name, value in metric.metric_state.items()}
    metric.set_dtype(cast)
    torch.nn.ModuleList([metric]).to(cast).half().bfloat16()
    assert {name: str(value) for name, value in metric.metric_state.items()} == before
    metric.update(preds[2:].flatten(0, 1), target[2:].flatten(0, 1))
    value = metric.compute()
    assert value.dtype == torch.float64
    assert_close(value, expected(case, preds, target))


@EACH
def test_later_changes_of_the_inputs_do_not_matter(case):
    preds, target = (part[0].clone() for part in inputs_of(case))
    wide = torch.stack([preds, torch.zeros_like(preds)], dim=1)
    metric, column = case.make(), case.make()
    metric.update(preds, target)
    column.update(wide[:, 0], target)
    value = expected(case, preds, target)
    for tensor in (preds, wide, target):
        tensor.zero_()
    assert_close(metric.compute(), value)
    assert_close(column.compute(), value)


def test_a_column_keeps_its_own_bytes_only():
    metric = TwoWayPartialAUROC()
    metric.update(torch.rand(1000, 100)[:, 3], torch.arange(1000) % 2)
    stored = sum(part.untyped_storage().nbytes() for parts in metric.metric_state.values() for part in parts)
    assert stored == 5 * 1000


@EACH
def test_metrics_of_a_model_on_the_meta_device(case):
    with torch.device("meta"):
        made, emptied, nested = case.make(), case.make(), torch.nn.ModuleDict({"m": case.make()})
    nested.to_empty(device="cpu")
    for metric in (made.to("cpu"), emptied.to_empty(device="cpu"), nested["m"]):
        assert metric.device.type == "cpu"
        metric.update(*(part[0] for part in inputs_of(case)))
        assert_close(metric.compute(), expected(case, *(part[0] for part in inputs_of(case))))


@EACH
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_moves_between_devices(case, dtype):
    preds, target = inputs_of(case)
    preds = preds.to(dtype)
    metric = case.make()
    metric.update(preds[0], target[0])
    metric.cuda().update(preds[1].cuda(), target[1].cuda())
    value = metric.compute()
    assert value.device.type == "cuda"
    assert_close(value.cpu(), expected(case, preds[:2], target[:2]))
    metric.cpu().update(preds[2], target[2])
    assert metric.compute().device.type == "cpu"
    assert_close(metric.compute(), expected(case, preds[:3], target[:3]))


# ---------------------------------------------------------------- two processes


@pytest.mark.ddp
@pytest.mark.parametrize("dist_sync_on_step", [False, True])
def test_two_processes(dist_sync_on_step):
    """All cases in one pair of processes: starting them takes longer than all of this."""

    def metric_of(case):
        return case.make(ignore_index=IGNORED, dist_sync_on_step=dist_sync_on_step)

    def life(rank, world_size):
        return [
            use(metric_of(case), case, inputs_of(case, kind), rank, world_size)
            for case in CASES.values()
            for kind in KINDS
        ]

    first, second = run_distributed(life, 2)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
