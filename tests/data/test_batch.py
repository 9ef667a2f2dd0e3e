"""Joint batches, and how their scores are cut into parts."""

import pytest
import torch

from lightning_tpauc import PosNegBatch, PosNegDataModule
from lightning_tpauc.functional import TaskMasks


def masks(*widths, num_tasks=2):
    return TaskMasks(*(torch.ones(num_tasks, width, dtype=torch.bool) for width in widths))


@pytest.mark.parametrize("num_dual", [0, 2])
def test_scores_of_several_tasks_get_a_leading_dimension(num_dual):
    sizes = (2, 3, num_dual)
    batch = PosNegBatch(torch.zeros(sum(sizes), 3), torch.zeros(2, 2).long(), *sizes, masks=masks(2, 3))
    scores = torch.arange(2.0 * sum(sizes)).reshape(-1, 2)
    pos, neg, dual = batch.split(scores)
    for task in (0, 1):
        assert pos[task].tolist() == [float(scores[i, task]) for i in (0, 1)]
        assert neg[task].tolist() == [float(scores[i, task]) for i in (2, 3, 4)]
        if dual is not None:
            assert dual[task].tolist() == [float(scores[i, task]) for i in (5, 6)]
    assert (dual is None) == (num_dual == 0)


def test_a_batch_says_which_examples_are_positive():
    """For a loss beside the method's: the labels of the data, in the order of the inputs."""
    y = (torch.arange(60) % 5 == 0).long()
    data = PosNegDataModule((torch.arange(60.0)[:, None], y), num_pos=3, num_neg=5, num_dual_neg=2)
    data.setup("fit")
    for batch in data.train_dataloader():
        assert batch.target.dtype == torch.int64
        assert torch.equal(batch.target, y[batch.inputs[:, 0].long()])


@pytest.mark.parametrize("sampling", ["pos_neg", "uniform"])
@pytest.mark.parametrize("sizes", [(8, 8), (9, 5)])
def test_labels_that_a_batch_does_not_know_are_minus_1(sampling, sizes):
    y = torch.stack([(torch.arange(90) % k == 0).double() for k in (4, 3)], dim=1)
    y[::7, 1] = torch.nan
    data = PosNegDataModule(
        (torch.arange(90.0)[:, None], y), num_pos=sizes[0], num_neg=sizes[1], num_dual_neg=0, sampling=sampling
    )
    data.setup("fit")
    for batch in data.train_dataloader():
        target, true = batch.target, y[batch.inputs[:, 0].long()].nan_to_num(-1).long()
        assert target.shape == true.shape
        assert torch.equal(target[target >= 0], true[target >= 0])
        if sampling == "uniform":
            assert torch.equal(target, true)
        else:
            assert ((target == 1).sum(1)[: batch.num_pos] == 1).all()
            assert torch.equal(target[batch.num_pos :] == 0, true[batch.num_pos :] == 0)
