"""The metric in a LightningModule: ``update``, then ``self.log`` of the metric itself."""

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from lightning_tpauc.errors import TPAUCWarning
from lightning_tpauc.functional.tpauc import two_way_partial_auroc
from lightning_tpauc.metrics import TwoWayPartialAUROC
from tests.helpers.problems import bare_trainer, noisy_labels
from tests.helpers.tolerances import assert_close


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


@pytest.mark.filterwarnings("default::lightning_tpauc.errors.TPAUCWarning")
def test_a_sanity_check_on_one_class_does_not_disturb_training_or_checkpoints(tmp_path):
    torch.manual_seed(0)
    model = Scorer()
    loader = DataLoader(TensorDataset(*make_data()), batch_size=16)
    checkpoint = ModelCheckpoint(dirpath=tmp_path, monitor="val/tpauc", mode="max")
    trainer = bare_trainer(
        default_root_dir=tmp_path,
        max_epochs=3,
        num_sanity_val_steps=2,
        callbacks=[checkpoint],
        enable_checkpointing=True,
    )
    with pytest.warns(TPAUCWarning, match="no positive example"):
        trainer.fit(model, loader, loader)
    inputs, target = make_data()
    last = trainer.callback_metrics["val/tpauc"]
    with torch.no_grad():
        assert_close(last, two_way_partial_auroc(model.layer(inputs).squeeze(-1), target, 0.3, 0.7), "float32")
    assert 0 < float(last) <= float(checkpoint.best_model_score) < 1  # the nan was not taken for the best
