"""Scikit-learn's digits."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from lightning_tpauc.data.source_files import DigitsDataModule


def ready(**kwargs):
    datamodule = DigitsDataModule(**kwargs)
    datamodule.setup()
    return datamodule


def collect(loader):
    batches = list(loader)
    return torch.cat([b.inputs for b in batches]), torch.cat([b.target for b in batches])


@pytest.mark.parametrize("digit", [0, 8])
def test_the_parts_make_up_the_digits(digit):
    datamodule = ready(positive_digit=digit, val_fraction=0.2, test_fraction=0.3)
    parts = [collect(datamodule.val_dataloader()), collect(datamodule.test_dataloader())]
    parts += [collect(loader) for loader in datamodule.scoring_dataloaders()]
    x, y = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    images, digits = load_digits(return_X_y=True)
    ours = np.column_stack([16 * x.numpy(), y.numpy()])
    theirs = np.column_stack([images, digits == digit])
    assert x.dtype == torch.float32
    assert (float(x.min()), float(x.max())) == (0.0, 1.0)
    assert sorted(map(tuple, ours)) == sorted(map(tuple, theirs))
    assert len(parts[1][1]) == 540
    shares = [float(y.float().mean()) for _, y in parts[:2]]
    assert max(shares) - min(shares) < 0.01


def test_the_test_part_is_fixed():
    reference = collect(ready().test_dataloader())[0]
    assert torch.equal(reference, collect(ready(seed=3, split_seed=4, val_fraction=0.1).test_dataloader())[0])
    assert torch.equal(reference, collect(ready().predict_dataloader())[0])
