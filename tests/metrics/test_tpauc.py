import pytest
import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryROC

from lightning_tpauc.errors import ArgumentError, TPAUCWarning
from lightning_tpauc.functional.tpauc import two_way_partial_auroc
from lightning_tpauc.metrics import ExactObjective, TwoWayPartialAUROC

THRESHOLDS = [-1.0, 0.0, 0.5, 1.0, 2.0]
EITHER = pytest.mark.parametrize("thresholds", [None, THRESHOLDS], ids=["exact", "binned"])


def batches(count=4, size=25, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        target = torch.randint(2, (size,), generator=generator)
        yield (torch.randn(size, generator=generator) + 1.2 * target).to(dtype), target


def joined(parts):
    scores, targets = zip(*parts, strict=True)
    return torch.cat(scores), torch.cat(targets)


def filled(metric, parts):
    for scores, target in parts:
        metric.update(scores, target)
    return metric


# ---------------------------------------------------------------- collections


def test_a_collection_shares_one_store_but_never_that_of_a_squashing_metric():
    collection = MetricCollection(
        {
            "roc": BinaryROC(),
            "small": TwoWayPartialAUROC(),
            "auroc": TwoWayPartialAUROC(0.0, 1.0, ignore_index=-1, validate_args=False),
            "objective": ExactObjective(),
        }
    )
    # The first batch does not tell the metrics apart: inside [0, 1] torchmetrics does not squash.
    parts = [(torch.tensor([0.1, 0.9, 0.4, 0.6]), torch.tensor([0, 1, 1, 0])), *batches()]
    parts += [(scores + 200, target) for scores, target in batches(seed=1)]  # a float32 sigmoid makes these equal
    filled(collection, parts)
    groups = sorted(sorted(group) for group in collection.compute_groups.values())
    assert groups == [["auroc", "objective", "small"], ["roc"]]
    values = collection.compute()
    assert torch.equal(values["small"], two_way_partial_auroc(*joined(parts)))
    assert torch.equal(values["auroc"], two_way_partial_auroc(*joined(parts), 0.0, 1.0))
    assert torch.equal(values["objective"], filled(ExactObjective(), parts).compute())
    collection.reset()
    filled(collection, parts[1:3])
    assert torch.equal(collection.compute()["small"], two_way_partial_auroc(*joined(parts[1:3])))


def test_a_collection_shares_counts_at_equal_thresholds_only():
    others = [-1.0, 0.0, 0.5, 1.0, 2.5]  # the first batch can't tell 2.0 from 2.5
    collection = MetricCollection(
        {
            "a": TwoWayPartialAUROC(thresholds=THRESHOLDS),
            "b": TwoWayPartialAUROC(0.2, 0.8, thresholds=torch.tensor(THRESHOLDS).flip(0)),
            "c": TwoWayPartialAUROC(thresholds=others),
        }
    )
    parts = [(torch.tensor([-2.0, 0.1, 0.7]), torch.tensor([0, 1, 1])), *batches()]
    values = filled(collection, parts).compute()
    assert sorted(sorted(group) for group in collection.compute_groups.values()) == [["a", "b"], ["c"]]
    assert torch.equal(values["a"], two_way_partial_auroc(*joined(parts), thresholds=THRESHOLDS))
    assert torch.equal(values["b"], two_way_partial_auroc(*joined(parts), 0.2, 0.8, THRESHOLDS))
    assert torch.equal(values["c"], two_way_partial_auroc(*joined(parts), thresholds=others))


# ---------------------------------------------------------------- errors


@EITHER
def test_values_are_checked_unless_told_otherwise(thresholds):
    scores, target = torch.tensor([0.3, float("nan"), 0.1]), torch.tensor([1, 7, 0])
    with pytest.raises(ArgumentError, match=r"hold only 0 and 1 but found \[7\]"):
        TwoWayPartialAUROC(thresholds=thresholds).update(scores, target)
    with pytest.raises(ArgumentError, match="1 of 2 scores are nan"):
        TwoWayPartialAUROC(thresholds=thresholds).update(scores[:2], target[:2] - target[:2])
    unchecked = TwoWayPartialAUROC(thresholds=thresholds, validate_args=False)
    unchecked.update(scores, target)
    assert unchecked.compute().isfinite()
    unchecked.update(scores[:2], target[:2] - target[:2])
    with pytest.warns(TPAUCWarning, match="some scores are nan"):
        assert unchecked.compute().isnan()
