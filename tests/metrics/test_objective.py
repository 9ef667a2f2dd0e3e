import pytest
import torch

from lightning_tpauc.metrics import ExactObjective


@pytest.mark.parametrize(
    ("num_pos", "num_neg"), [(1, 9), (9, 1), (0, 9), (9, 0), (0, 0)], ids=lambda count: f"{count} examples"
)
def test_nan_where_the_rectangle_holds_no_pair(num_pos, num_neg):
    metric = ExactObjective(min_tpr=0.5, max_fpr=0.5)
    metric.update(torch.zeros(num_pos + num_neg), torch.tensor([1] * num_pos + [0] * num_neg, dtype=torch.int64))
    assert metric.compute().isnan()
