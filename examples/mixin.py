"""A LightningModule that exists already trains for two-way partial AUC: `class Ours(TPAUCModule, Theirs)`.

Kept are its `forward`, its optimizer and schedule, its hyperparameters, its callbacks and other hooks, its own metrics;
its `training_step` and `validation_step` are replaced, and what is wanted of the latter is called by name. Seconds.
"""

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torchmetrics.classification import BinaryAveragePrecision

from lightning_tpauc import DigitsDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO


class Theirs(LightningModule):
    """As it was: trained with cross-entropy, validated by average precision."""

    def __init__(self, width: int = 32, lr: float = 0.01) -> None:
        super().__init__()
        self.lr = lr
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
        self.precision = BinaryAveragePrecision()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.net(x).squeeze(1)
        return scores

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        x, y = batch
        return torch.nn.functional.binary_cross_entropy_with_logits(self(x), y.float())

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        x, y = batch
        self.precision.update(self(x), y)
        self.log("val/average_precision", self.precision, batch_size=len(y))

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 10)}


class Ours(TPAUCModule, Theirs):
    """The same model; its average precision is logged beside val/tpauc."""

    def validation_step(self, batch, batch_idx=0, dataloader_idx=0):  # noqa: ANN001
        """Theirs takes pairs, and rows that fill up a batch have the target -1."""
        real = batch.target >= 0  # none, perhaps; what one process does not log makes the others wait
        Theirs.validation_step(self, (batch.inputs[real], batch.target[real]), batch_idx)


def main() -> None:
    seed_everything(0, verbose=False)
    model = Ours(width=16, lr=0.02, algorithm=STACO(min_tpr=0.8, max_fpr=0.2))
    trainer = Trainer(accelerator="cpu", max_epochs=15, logger=False, enable_checkpointing=False)
    trainer.fit(model, DigitsDataModule(val_fraction=0.3))
    found = {name: f"{float(trainer.callback_metrics[name]):.3f}" for name in ("val/tpauc", "val/average_precision")}
    print(found)


if __name__ == "__main__":
    main()
