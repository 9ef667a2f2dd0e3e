"""Cross-entropy and STACO side by side, on the same budget.

The task: tell the digit 8 from the others with a linear model, judged where at least half of the eights are found and
at most half of the other digits raise a false alarm. All methods see 96 images a step for 400 steps, and the learning
rate of each is the best one on the validation part. Half a minute on a laptop: `python examples/quickstart.py`.
"""

import logging
import statistics
import warnings

import torch
from lightning.pytorch import Trainer, seed_everything
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from lightning_tpauc import PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import STACO, Algorithm, CrossEntropy
from lightning_tpauc.models import Linear

MIN_TPR, MAX_FPR = 0.5, 0.5
STEPS, SEEDS = 400, range(5)

# how to train, negatives of a step beside its 32 positives, learning rates to try
METHODS = {
    # 96 images of the whole training set, some 10 eights among them
    "cross-entropy": (lambda: CrossEntropy(MIN_TPR, MAX_FPR), 64, (10.0, 30.0, 100.0)),
    # 32 eights, 64 others; each class weighs a half
    "balanced cross-entropy": (lambda: CrossEntropy(MIN_TPR, MAX_FPR, balanced=True), 64, (10.0, 100.0, 1000.0)),
    # 32 eights, 32 others for the weights, 32 for the dual variables
    "STACO": (lambda: STACO(MIN_TPR, MAX_FPR), 32, (0.1, 0.3, 1.0)),
}


def run(algorithm: Algorithm, num_neg: int, lr: float, seed: int) -> dict[str, float]:
    """Split, train, and return the trained model's metrics on the validation and the test part."""
    seed_everything(seed, verbose=False)
    images, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(digits == 8).long()
    train, test = train_test_split(range(len(y)), test_size=0.3, stratify=y, random_state=seed)
    data = PosNegDataModule(
        (x[train], y[train]), test_dataset=(x[test], y[test]), val_fraction=0.25, split_seed=seed,
        num_pos=32, num_neg=num_neg, seed=seed,
    )  # fmt: skip
    module = TPAUCModule(
        Linear(64),
        algorithm,
        lambda parameters: torch.optim.SGD(parameters, lr=lr),
        lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [STEPS // 2, STEPS * 3 // 4]),
        lr_scheduler_interval="step",
    )
    trainer = Trainer(
        accelerator="cpu", devices=1, max_epochs=-1, max_steps=STEPS, check_val_every_n_epoch=1000, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        callbacks=[StageCallback(burn_in=STEPS // 2)],  # STACO returns the average of the second half
    )  # fmt: skip
    trainer.fit(module, data)
    return {**trainer.validate(module, data, verbose=False)[0], **trainer.test(module, data, verbose=False)[0]}


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    print("medians of 5 splits     test TPAUC  (lowest, highest)  AUROC    lr   ahead of cross-entropy")
    baseline: list[float] = []
    for name, (method, num_neg, rates) in METHODS.items():
        tried = {lr: [run(method(), num_neg, lr, seed) for seed in SEEDS] for lr in rates}
        lr = max(rates, key=lambda rate: statistics.median(result["val/tpauc"] for result in tried[rate]))
        areas, aurocs = ([result[f"test/{metric}"] for result in tried[lr]] for metric in ("tpauc", "auroc"))
        spread = f"{statistics.median(areas):10.3f}  ({min(areas):.3f}, {max(areas):.3f})"
        baseline = baseline or areas
        ahead = sum(ours > theirs for ours, theirs in zip(areas, baseline, strict=True))
        print(f"{name:<24}{spread:>29}{statistics.median(aurocs):>8.3f}{lr:>6g}   on {ahead} of {len(SEEDS)}")


if __name__ == "__main__":
    main()
