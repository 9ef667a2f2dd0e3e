import pytest
import torch

from lightning_tpauc.functional.surrogates import get_surrogate
from lightning_tpauc.metrics import ExactObjective
from tests.helpers.tolerances import assert_close


def scored(num_pos, num_neg, seed=0):
    generator = torch.Generator().manual_seed(seed)
    target = torch.cat([torch.ones(num_pos, dtype=torch.int64), torch.zeros(num_neg, dtype=torch.int64)])
    return torch.randn(num_pos + num_neg, generator=generator, dtype=torch.float64) + 0.5 * target, target


def mean_loss(scores, target, k1, k2, loss):
    """The definition, by sorting lists."""
    pos, neg = sorted(scores[target == 1].tolist())[:k1], sorted(scores[target == 0].tolist())[-k2:]
    return sum(loss(n - p) for p in pos for n in neg) / (k1 * k2)


@pytest.mark.parametrize(
    ("surrogate", "loss"),
    [
        ("squared_hinge", lambda t: max(0.0, 0.3 + t) ** 2),
        ("hinge", lambda t: max(0.0, 0.3 + t)),
        (get_surrogate("square", margin=0.3), lambda t: (0.3 + t) ** 2),
    ],
)
def test_mean_over_the_pairs_in_the_rectangle(surrogate, loss):
    scores, target = scored(10, 15)
    metric = ExactObjective(min_tpr=0.7, max_fpr=0.5, surrogate=surrogate, margin=0.3)
    for part in range(3):
        metric.update(scores[part::3], target[part::3])
    assert_close(metric.compute(), mean_loss(scores, target, k1=3, k2=7, loss=loss))
    assert metric.compute().dtype == torch.float64


@pytest.mark.parametrize(
    ("num_pos", "num_neg"), [(1, 9), (9, 1), (0, 9), (9, 0), (0, 0)], ids=lambda count: f"{count} examples"
)
def test_nan_where_the_rectangle_holds_no_pair(num_pos, num_neg):
    metric = ExactObjective(min_tpr=0.5, max_fpr=0.5)
    metric.update(*scored(num_pos, num_neg))
    assert metric.compute().isnan()
