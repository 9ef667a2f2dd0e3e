"""A validation in the midst of a training, beside the same forward passes with torchmetrics' AUROC.

python -m benchmarks.validation
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import BinaryAUROC

from benchmarks.common import arguments, bare_trainer, compare, header, now, quiet, verdict
from lightning_tpauc import PosNegDataModule, TPAUCModule

INPUTS = 20


class WithAUROC(LightningModule):
    """Cross-entropy with a validation as one writes it in Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.auroc = nn.Linear(INPUTS, 1), BinaryAUROC()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(self.net(batch[0])[:, 0], batch[1].float())

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.auroc.update(self.net(batch[0])[:, 0], batch[1])
        self.log("val/auroc", self.auroc, on_epoch=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Clock(Callback):
    """Seconds of each validation of a training."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start = now()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seconds.append(now() - self._start)


def validations(epochs: int, fit: Callable[[Trainer], None]) -> list[float]:
    """Seconds of the validation after each epoch of twenty steps."""
    clock = Clock()
    fit(bare_trainer(max_epochs=epochs, limit_train_batches=20, num_sanity_val_steps=0, callbacks=[clock]))
    return clock.seconds


def main(args: list[str] | None = None) -> None:
    options = arguments(__doc__, args, size=100_000)
    quiet()
    header(f"validation, {options.size:,} examples with {INPUTS} inputs, one in twenty positive, batches of 1024")
    generator = torch.Generator().manual_seed(0)
    y = (torch.rand(options.size, generator=generator) < 0.05).long()
    x = torch.randn(options.size, INPUTS, generator=generator) + 0.4 * y[:, None]
    epochs = 12  # the rectangle shrinks over the first half, and has its final size from then on

    def data() -> PosNegDataModule:
        return PosNegDataModule((x[:2000], y[:2000]), val_dataset=(x, y))

    def theirs(trainer: Trainer) -> None:
        loader = data()  # so that both sides read the same batches
        loader.setup("fit")
        train = DataLoader(TensorDataset(x[:2000], y[:2000]), batch_size=256)
        trainer.fit(WithAUROC(), train, loader.val_dataloader())

    works = {"ours": lambda trainer: trainer.fit(TPAUCModule(nn.Linear(INPUTS, 1)), data()), "torchmetrics": theirs}
    seconds: dict[str, list[list[float]]] = {side: [] for side in works}
    for _ in range(2 if options.quick else 7):
        for side, fit in works.items():
            seconds[side].append(validations(epochs, fit))
    for name, part in (("while the rectangle shrinks", slice(1, 6)), ("at its final size", slice(7, epochs))):
        print(f"\n### {name}")
        medians = {side: [statistics.median(times[part]) for times in each] for side, each in seconds.items()}
        sides = {side: iter([times[0], *times]).__next__ for side, times in medians.items()}
        clocks = compare(sides, len(medians["ours"]))
        verdict(f"{name}: ours / torchmetrics", clocks["ours"].over(clocks["torchmetrics"]), 1.1)


if __name__ == "__main__":
    main()
