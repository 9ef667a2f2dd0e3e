"""The metric in a LightningModule: ``update``, then ``self.log`` of the metric itself."""

import pytest
import torch
from lightning.pytorch import LightningModule
from torch.utils.data import DataLoader, TensorDataset

from lightning_tpauc.functional.tpauc import two_way_partial_auroc
from lightning_tpauc.metrics import TwoWayPartialAUROC
from tests.helpers.problems import bare_trainer, noisy_labels


class Scorer(LightningModule):
    def __init__(self, **metric_arguments):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.metric = TwoWayPartialAUROC(0.3, 0.7, **metric_arguments)

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.binary_cross_entropy_with_logits(self.layer(batch[0]).squeeze(-1), batch[1].float())

    def validation_step(self, batch, batch_idx):
        self.metric.update(self.layer(batch[0]).squeeze(-1), batch[1])
        self.log("val/tpauc", self.metric, batch_size=len(batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def make_data():
    inputs, target = noisy_labels(90, 3, 1.0, 0.0, seed=0)
    order = target.argsort()  # negatives first: early batches hold one class
    return inputs[order], target[order]


@pytest.mark.parametrize("thresholds", [None, [-1.0, -0.3, 0.0, 0.3, 1.0]], ids=["exact", "binned"])
@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-true", "bf16-mixed"])
def test_the_logged_value_is_that_of_the_whole_set(tmp_path, precision, thresholds):
    torch.manual_seed(0)
    model = Scorer(thresholds=thresholds)
    inputs, target = make_data()
    loader = DataLoader(TensorDataset(inputs, target), batch_size=16)
    trainer = bare_trainer(default_root_dir=tmp_path, precision=precision)
    (logged,) = trainer.validate(model, loader, verbose=False)
    with torch.no_grad(), trainer.precision_plugin.forward_context():
        batches = [model.layer(part.to(model.layer.weight.dtype)).squeeze(-1) for part in inputs.split(16)]
    assert logged["val/tpauc"] == float(two_way_partial_auroc(torch.cat(batches), target, 0.3, 0.7, thresholds))
