"""Several processes together give the value of all their examples, bit for bit."""

import pytest
import torch
from torchmetrics import MetricCollection

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional import fpr_at_min_tpr, tpr_at_max_fpr, two_way_partial_auroc
from lightning_tpauc.metrics import ExactObjective, FPRAtMinTPR, TPRAtMaxFPR, TwoWayPartialAUROC
from tests.helpers.ddp import run_distributed

pytestmark = pytest.mark.ddp


def scored(size=60, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(2, (size,), generator=generator)
    return (torch.randn(size, generator=generator) + target).to(dtype), target


def collect(rank, world_size, make, bounds, chunk):
    """Each rank sees its own slice, in batches of ``chunk``; returns its value and what it kept for itself."""
    scores, target = scored()
    metric = make()
    mine = slice(*bounds[rank])
    for part in zip(scores[mine].split(chunk), target[mine].split(chunk), strict=True):
        if len(part[0]):
            metric.update(*part)
    value = metric.compute()
    kept = sum(len(part) for part in metric.scores) if isinstance(metric.scores, list) else None
    return value, kept


@pytest.mark.parametrize(
    "bounds", [[(0, 30), (30, 60)], [(0, 7), (7, 60)], [(0, 0), (0, 60)], [(0, 60), (60, 60)]], ids=str
)
def test_uneven_and_empty_ranks(bounds):
    results = run_distributed(collect, 2, TwoWayPartialAUROC, bounds, 8)
    expected = two_way_partial_auroc(*scored())
    for rank, (value, kept) in enumerate(results):
        assert torch.equal(value, expected)
        assert kept == bounds[rank][1] - bounds[rank][0]  # each rank has only its own again and may go on


@pytest.mark.parametrize(
    "dtypes", [(torch.float64, None), (None, torch.int32), (torch.float32, torch.float64)], ids=str
)
def test_ranks_agree_on_a_dtype(dtypes):
    """None stands for a rank without examples; values would collide or gloo abort if each sent its own dtype."""

    def compute(rank, world_size):
        metric = TwoWayPartialAUROC(0.0, 1.0)
        if dtypes[rank] is not None:
            metric.update(torch.tensor([2, 1], dtype=dtypes[rank]), torch.tensor([1, 0]))
        if dtypes[rank] is torch.float64:
            metric.update(torch.tensor([2 + 1e-12], dtype=torch.float64), torch.tensor([0]))
        return metric.compute()

    num_ranks = sum(dtype is not None for dtype in dtypes)
    pos, neg = [2.0] * num_ranks, [1.0] * num_ranks + [2 + 1e-12] * (torch.float64 in dtypes)
    labels = torch.tensor([1] * len(pos) + [0] * len(neg))
    expected = two_way_partial_auroc(torch.tensor([*pos, *neg], dtype=torch.float64), labels, 0.0, 1.0)
    assert all(torch.equal(value, expected) for value in run_distributed(compute, 2))


def test_a_rank_without_examples_does_not_round_the_integers_of_another():
    def compute(rank, world_size):
        metric = TwoWayPartialAUROC(0.0, 1.0)
        if rank == 1:
            metric.update(torch.tensor([2**60 + 1, 2**60]), torch.tensor([1, 0]))
        return float(metric.compute())

    assert run_distributed(compute, 2) == [1.0, 1.0]


def test_the_curve_covers_all_ranks():
    def curve(rank, world_size):
        metric = TwoWayPartialAUROC()
        scores, target = scored()
        metric.update(scores[rank::2], target[rank::2])
        return metric.roc()

    alone = TwoWayPartialAUROC()
    alone.update(*scored())
    for points in run_distributed(curve, 2):
        assert torch.equal(torch.stack(points), torch.stack(alone.roc()))


@pytest.mark.parametrize("weighted", [(0,), (1,), (0, 1)], ids=str)
def test_weights_of_some_ranks_and_batches(weighted):
    """What came without counts 1."""
    scores, target = scored()
    weight = torch.rand(60, generator=torch.Generator().manual_seed(2))
    kept = torch.ones(60)
    for rank in weighted:
        kept[rank * 30 + 10 : rank * 30 + 20] = weight[rank * 30 + 10 : rank * 30 + 20]

    def compute(rank, world_size):
        metrics = MetricCollection([TwoWayPartialAUROC(), TPRAtMaxFPR(0.2), FPRAtMinTPR(0.7)])
        for start in range(rank * 30, rank * 30 + 30, 10):
            rows = slice(start, start + 10)
            given = {"sample_weight": weight[rows]} if rank in weighted and start % 30 == 10 else {}
            metrics.update(scores[rows], target[rows], **given)
        return list(metrics.compute().values()), torch.stack(metrics["TwoWayPartialAUROC"].roc())

    curve = TwoWayPartialAUROC()
    curve.update(scores, target, kept)
    expected = [
        two_way_partial_auroc(scores, target, sample_weight=kept),
        tpr_at_max_fpr(scores, target, 0.2, sample_weight=kept),
        fpr_at_min_tpr(scores, target, 0.7, sample_weight=kept),
    ]
    for values, points in run_distributed(compute, 2):
        assert sorted(map(float, values)) == pytest.approx(sorted(map(float, expected)), rel=1e-12)
        torch.testing.assert_close(points, torch.stack(curve.roc()), rtol=1e-12, atol=1e-15)
    with pytest.raises(ArgumentError, match="leave out `sample_weight`"):
        ExactObjective()(scores, target, kept)
