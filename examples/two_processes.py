"""Two processes train together: `python examples/two_processes.py` starts both.

`num_pos` and `num_neg` are per process, so two with 32 and 96 take the steps of one with 64 and 192. Every process
applies the same update to the same dual variables. On GPUs: `accelerator="gpu"`. Takes seconds.
"""

import torch
from lightning.pytorch import Trainer, seed_everything

from lightning_tpauc import DigitsDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.models import MLP


def main(devices: int = 2) -> None:
    torch.set_num_threads(1)
    seed_everything(0, verbose=False)
    data = DigitsDataModule(val_fraction=0.3, num_pos=64 // devices, num_neg=192 // devices)
    model = TPAUCModule(MLP(64, (32,)), STACO(min_tpr=0.8, max_fpr=0.2))
    trainer = Trainer(
        accelerator="cpu", devices=devices, strategy="ddp", max_epochs=5, logger=False, enable_checkpointing=False
    )
    trainer.fit(model, data)
    reached = trainer.validate(model, data, verbose=False)[0]  # exact: no example counts twice
    if trainer.is_global_zero:
        print(f"TPAUC {reached['val/tpauc']:.3f} with {trainer.world_size} processes")


if __name__ == "__main__":
    main()
