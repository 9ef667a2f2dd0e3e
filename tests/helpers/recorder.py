"""A small LightningModule that writes down what it is given."""

from types import SimpleNamespace

import torch
from lightning.pytorch import LightningModule

from tests.helpers.problems import bare_trainer


class Recorder(LightningModule):
    """Manual optimization with a linear score; counts batches as TPAUCModule does, if asked to."""

    def __init__(self, dim=4, counts=True, algorithm=None):
        super().__init__()
        self.automatic_optimization = False
        self.linear = torch.nn.Linear(dim, 1)
        self.algorithm = algorithm
        self.counts = counts
        if counts:
            self.training_state = SimpleNamespace(batches_seen=0)
        self.train_log, self.eval_log, self.epochs = [], [], 0

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.linear(batch.inputs).square().mean())
        optimizer.step()
        if self.counts:
            self.training_state.batches_seen += 1
        sizes = batch.num_pos, batch.num_neg, batch.num_dual_neg
        self.train_log.append((self.current_epoch, batch_idx, batch.index.tolist(), batch.inputs.sum().item(), sizes))

    def on_train_epoch_end(self):
        self.epochs += 1

    def validation_step(self, batch, batch_idx):
        self.eval_log.append(
            (batch.example_id.tolist(), batch.target.tolist(), self.linear(batch.inputs)[:, 0].tolist())
        )

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return batch.example_id

    def configure_optimizers(self):
        _ = self.trainer.estimated_stepping_batches  # asks for the loaders before a checkpoint is restored
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def on_save_checkpoint(self, checkpoint):
        if self.counts:
            checkpoint["batches_seen"] = self.training_state.batches_seen

    def on_load_checkpoint(self, checkpoint):
        if self.counts:
            self.training_state.batches_seen = checkpoint["batches_seen"]


def make_trainer(**kwargs):
    """A bare Trainer for three epochs without a sanity check; keyword arguments override."""
    return bare_trainer(**{"num_sanity_val_steps": 0, "max_epochs": 3, **kwargs})
