"""The metric inside of torchmetrics' wrappers."""

import pytest
import torch
from torchmetrics.wrappers import (
    BootStrapper,
    Running,
)

from lightning_tpauc.functional import two_way_partial_auroc
from lightning_tpauc.metrics import TwoWayPartialAUROC

EITHER = pytest.mark.parametrize("thresholds", [None, [-1.0, 0.0, 0.5, 1.0]], ids=["exact", "binned"])


def scored(size=120):
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(2, (size,), generator=generator)
    return torch.randn(size, generator=generator) + target, target


def batches():
    scores, target = scored()
    return list(zip(scores.split(20), target.split(20), strict=True))


def joined(parts):
    scores, targets = zip(*parts, strict=True)
    return torch.cat(scores), torch.cat(targets)


@EITHER
@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize("forward", [False, True])
def test_running_window(thresholds, window, forward):
    metric = Running(TwoWayPartialAUROC(thresholds=thresholds), window)
    parts = batches()
    for _ in range(2):
        for seen, part in enumerate(parts, start=1):
            if forward:
                assert torch.equal(metric(*part), two_way_partial_auroc(*part, thresholds=thresholds))
            else:
                metric.update(*part)
            expected = two_way_partial_auroc(*joined(parts[max(0, seen - window) : seen]), thresholds=thresholds)
            assert torch.equal(metric.compute(), expected)
        metric.reset()


@EITHER
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quantiles_of_a_bootstrap_wrapper(thresholds, dtype):
    """torch.quantile wants one dtype for both; ``set_dtype`` gives the metric that of the quantiles."""
    base = TwoWayPartialAUROC(0.0, 1.0, thresholds=thresholds).set_dtype(dtype)
    metric = BootStrapper(base, 20, quantile=torch.tensor([0.05, 0.95], dtype=dtype), raw=True)
    metric.update(*scored())
    values = metric.compute()
    low, high = values["quantile"]
    assert torch.equal(values["quantile"], torch.quantile(values["raw"], torch.tensor([0.05, 0.95], dtype=dtype)))
    assert low < two_way_partial_auroc(*scored(), 0.0, 1.0, thresholds) < high
