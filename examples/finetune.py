"""A model that cross-entropy trained is fine-tuned for a corner of the ROC curve, from its checkpoint.

`init_from` takes the weights of another run, on whatever data, or a file of a backbone's `state_dict`. The second run
gives the last layer ten times the rate of the others. Takes seconds: `python examples/finetune.py`.
"""

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Trainer, seed_everything

from lightning_tpauc import DigitsDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO, CrossEntropy
from lightning_tpauc.models import MLP

MIN_TPR, MAX_FPR = 0.8, 0.2


def layerwise(net: MLP) -> Callable[[Any], torch.optim.Optimizer]:
    """What makes the optimizer: two groups of parameters, whose rates the warm-up or a schedule scale alike."""
    return lambda _: torch.optim.Adam(
        [
            {"params": net.layers[:-1].parameters(), "lr": 1e-3},
            {"params": net.layers[-1].parameters(), "lr": 1e-2},
        ]
    )


def fit(model: TPAUCModule, data: DigitsDataModule, epochs: int) -> Trainer:
    trainer = Trainer(accelerator="cpu", max_epochs=epochs, logger=False, enable_checkpointing=False)
    trainer.fit(model, data)
    return trainer


def main() -> None:
    seed_everything(0, verbose=False)
    data = DigitsDataModule(positive_digit=8, val_fraction=0.3)

    model = TPAUCModule(MLP(64, (32,)), CrossEntropy(MIN_TPR, MAX_FPR))
    trainer = fit(model, data, epochs=40)
    before = trainer.validate(model, data, verbose=False)[0]["val/tpauc"]
    trainer.save_checkpoint("pretrained.ckpt")

    net = MLP(64, (32,))
    tuned = TPAUCModule(net, STACO(MIN_TPR, MAX_FPR), layerwise(net), init_from="pretrained.ckpt")
    after = fit(tuned, data, epochs=10).validate(tuned, data, verbose=False)[0]["val/tpauc"]
    print(f"TPAUC {before:.3f} after cross-entropy, {after:.3f} fine-tuned")

    torch.save(tuned.backbone.state_dict(), "finetuned.pt")  # the plain network, for programs without this package
    MLP(64, (32,)).load_state_dict(torch.load("finetuned.pt", weights_only=True))


if __name__ == "__main__":
    main()
