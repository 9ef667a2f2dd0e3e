"""Which batch-norm statistics go with averaged weights? Test TPAUC of a small network on the digits.

Every choice trains the same network from the same seeds on the same samples; STACO1 averages the whole run, STACO2
every epoch. Prints medians over seeds, and how often each choice was the best of the three.

Run: ``python benchmarks/batch_norm.py`` (about a minute), ``--quick`` for two seeds.
"""

import argparse
import logging
import math
import statistics
import warnings

import torch
from lightning.pytorch import Trainer

from lightning_tpauc import DigitsDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.models import MLP

CHOICES = ("keep", "average", "recompute")


def test_tpauc(choice: str, gamma: float, seed: int, epochs: int) -> float:
    """Test TPAUC(0.75, 0.25) of one run."""
    torch.manual_seed(seed)
    module = TPAUCModule(
        MLP(64, (32, 32), batch_norm=True),
        STACO(0.75, 0.25, gamma=gamma),
        lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, max(1, epochs // 2), gamma=0.1),
        score_activation="sigmoid",
    )
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[StageCallback(batch_norm=choice)],  # type: ignore[arg-type]  # one of CHOICES
    )
    data = DigitsDataModule(positive_digit=8, num_pos=16, num_neg=16, seed=seed)
    trainer.fit(module, data)
    return float(trainer.test(module, data, verbose=False)[0]["test/tpauc"])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args(arguments).quick
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    seeds, epochs = (range(2), 2) if quick else (range(7), 4)
    for name, gamma in (("STACO1", math.inf), ("STACO2", 300.0)):
        runs = {choice: [test_tpauc(choice, gamma, seed, epochs) for seed in seeds] for choice in CHOICES}
        top = [max(values) for values in zip(*runs.values(), strict=True)]
        for choice in CHOICES:
            values = runs[choice]
            wins = sum(value == highest for value, highest in zip(values, top, strict=True))
            median = statistics.median(values)
            print(f"{name}  {choice:9s}  median {median:.4f}  best in {wins} of {len(values)}")


if __name__ == "__main__":
    main()
