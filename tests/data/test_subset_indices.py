"""Positions and what is no position, wherever data sets are cut."""

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from lightning_tpauc.data.datamodule import PosNegDataModule
from lightning_tpauc.errors import DataError
from tests.helpers.items import Items, N, X, Y, pair

MASK = np.arange(N) >= 20
DATA = TensorDataset(X, Y)


class Cyclic(Items):
    """Counts from its end, as lists do."""

    def __getitem__(self, row):
        return self.make(row % N)


@pytest.mark.parametrize("mask", [MASK, torch.from_numpy(MASK)])
@pytest.mark.parametrize("part", ["train", "val", "test", "predict"])
def test_masks_are_refused_where_positions_are_meant(part, mask):
    datamodule = PosNegDataModule(DATA, num_pos=3, num_neg=5)
    setattr(datamodule, f"{part}_dataset", ConcatDataset([DATA, Subset(DATA, mask)]))
    with pytest.raises(DataError, match=rf"Subset in `{part}_dataset` has a mask as indices, .*np.flatnonzero"):
        datamodule.setup()


@pytest.mark.parametrize("dataset", [DATA, TensorDataset(X.bfloat16(), Y), Cyclic(pair)])
def test_negative_and_repeated_positions(dataset):
    """The k-th item is what torch says it is: of a list, -1 is the last one."""
    dataset = Subset(dataset, [-1, 2, 2, -3, 5, 0, 1])
    datamodule = PosNegDataModule(dataset, num_pos=1, num_neg=2, batch_size=9, val_dataset=dataset)
    datamodule.setup()
    batch = next(iter(datamodule.val_dataloader()))
    expected = [dataset[row] for row in range(7)]
    assert torch.equal(batch.inputs, torch.stack([x for x, _ in expected]))
    assert batch.target.tolist() == [int(y) for _, y in expected] == [0, 1, 1, 1, 0, 0, 0]
    assert datamodule.num_positives == 3
