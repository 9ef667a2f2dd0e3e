import torch
from torch.utils.data import TensorDataset

from lightning_tpauc.data.examples import Datasets
from lightning_tpauc.data.source_files import GivenSplitDataModule


class Counting(GivenSplitDataModule):
    """Loads three small parts and counts how often."""

    loaded = 0

    def load(self):
        self.loaded += 1
        part = TensorDataset(torch.randn(20, 2), torch.arange(20) % 2)
        return Datasets(part, None if self.train_with_val else part, part)


def test_loads_once_for_all_stages():
    datamodule = Counting(num_pos=2, num_neg=2)
    for stage in ("fit", "validate", "test", "predict", None):
        datamodule.setup(stage)
    assert datamodule.loaded == 1


def test_without_folds_nothing_validates_beside_the_joint_training_part():
    datamodule = Counting(train_with_val=True, num_pos=2, num_neg=2)
    datamodule.setup("fit")
    assert datamodule.val_dataloader() == []
