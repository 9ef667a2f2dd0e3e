"""Share of a stage's time that the exact restart takes: a linear model on ijcnn1, GIN on Tox21.

python -m benchmarks.restart
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn

from benchmarks.common import arguments, bare_trainer, data_folder, header, now, quiet, verdict
from lightning_tpauc import LIBSVMDataModule, PosNegDataModule, SMILESDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.models import GIN


class TimedStages(StageCallback):
    """Adds up the time of the stages' ends, and that of the whole training after the start."""

    def __init__(self, scores: Literal["remembered", "forward"]) -> None:
        super().__init__(scores=scores)
        self.ends = self.begin = self.total = 0.0
        self.count = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self.begin = now()

    def _end_stage(self, *args: Any) -> None:
        start = now()
        super()._end_stage(*args)
        self.ends += now() - start
        self.count += 1
        self.total = now() - self.begin


def share(data: PosNegDataModule, make: Any, scores: Literal["remembered", "forward"], epochs: int) -> float:
    stages = TimedStages(scores)
    module = TPAUCModule(
        make(), STACO(gamma=500.0), optimizer=lambda p: torch.optim.SGD(p, lr=0.1), score_activation="sigmoid"
    )
    trainer = bare_trainer(
        max_epochs=epochs,
        limit_val_batches=0,
        callbacks=[stages],
    )
    trainer.fit(module, data)
    length, end = stages.total / stages.count, stages.ends / stages.count
    print(f"{scores}: {stages.count} stages, {length:.3g} s each, restart {end:.3g} s")
    return stages.ends / stages.total


def main(args: list[str] | None = None) -> None:
    options = arguments(__doc__, args)
    quiet()
    header("restart, a stage is an epoch")
    folder = data_folder()
    ijcnn1 = LIBSVMDataModule(str(folder / "ijcnn1"), "ijcnn1.bz2")
    tox21 = SMILESDataModule("tox21.csv.gz", "NR-AR", root=str(folder / "tox21"))
    epochs = 1 if options.quick else 3
    for name, data, make in (("ijcnn1, linear", ijcnn1, lambda: nn.Linear(22, 1)), ("Tox21, GIN", tox21, GIN)):
        for scores in ("remembered", "forward"):
            verdict(f"{name}, scores {scores}, share of the stage", share(data, make, scores, epochs), 0.05)


if __name__ == "__main__":
    main()
