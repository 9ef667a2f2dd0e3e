import torch
from torchmetrics import MetricCollection

from lightning_tpauc.functional import fpr_at_min_tpr, tpr_at_max_fpr
from lightning_tpauc.metrics import FPRAtMinTPR, TPRAtMaxFPR, TwoWayPartialAUROC


def test_batches_give_the_value_of_the_whole_from_one_store():
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(2, (90,), generator=generator)
    scores = torch.randn(90, generator=generator) + target
    collection = MetricCollection(
        {"tpauc": TwoWayPartialAUROC(0.7, 0.3), "tpr": TPRAtMaxFPR(0.3), "fpr": FPRAtMinTPR(0.7)}
    )
    for part in zip(scores.split(20), target.split(20), strict=True):
        collection.update(*part)
    values = collection.compute()
    assert [sorted(group) for group in collection.compute_groups.values()] == [["fpr", "tpauc", "tpr"]]
    assert torch.equal(values["tpr"], tpr_at_max_fpr(scores, target, 0.3))
    assert torch.equal(values["fpr"], fpr_at_min_tpr(scores, target, 0.7))
    assert 0 < float(values["fpr"]) < float(values["tpr"]) < 1
