"""How many tensor operations a whole training step is made of, beside cross-entropy in the same Trainer."""

import torch
from lightning.pytorch import Callback, LightningModule
from torch import nn

from lightning_tpauc import PosNegDataModule, TPAUCModule
from tests.helpers.operations import CountOperations
from tests.helpers.problems import bare_trainer, noisy_labels


class Counted(Callback):
    """Counts what happens from a batch's start to its end."""

    def __init__(self):
        self.counts = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.operations = CountOperations()
        self.operations.__enter__()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.operations.__exit__(None, None, None)
        self.counts.append(len(self.operations.names))


class CrossEntropy(LightningModule):
    """As one writes it in Lightning."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def training_step(self, batch, batch_idx):
        scores = self.net(batch.inputs)[:, 0]
        target = (torch.arange(len(scores)) < 64).float()
        return nn.functional.binary_cross_entropy_with_logits(scores, target)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def test_a_default_step_takes_at_most_120_more_than_cross_entropy():
    x, y = noisy_labels(900, 6, 0.3)
    median = []
    for kind in (CrossEntropy, TPAUCModule):
        counted = Counted()
        net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
        trainer = bare_trainer(max_steps=90, max_epochs=-1, callbacks=[counted])
        trainer.fit(kind(net), PosNegDataModule((x, y)))
        median.append(sorted(counted.counts)[45])
    assert 60 < median[1] - median[0] <= 120, median
