"""Cross-entropy, its class-balanced variant and STACO side by side, on the same budget.

A linear model on LIBSVM's ijcnn1, one example in ten positive, judged where at least half of the positives are found
and at most half of the negatives raise a false alarm. All methods train for 1000 steps of 256 examples and end with
the average of their weights. Cross-entropy has the learning rate of Adam that is best on validation data, STACO its
defaults. Downloads 4 MB; then it takes some minutes: `python examples/quickstart.py`.
"""

import argparse
import logging
import sys
import tempfile
import warnings
from functools import partial
from statistics import median

import torch
from lightning.pytorch import Trainer

from lightning_tpauc import LIBSVMDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO, Algorithm, CrossEntropy
from lightning_tpauc.errors import TPAUCError
from lightning_tpauc.models import Linear

STEPS, SEEDS = 1000, range(5)
# how to train, for TPR >= 0.5 and FPR <= 0.5, and learning rates of Adam to try; of 256 examples some 25 are positive,
# then 64
METHODS = {
    "cross-entropy": (lambda: CrossEntropy(0.5, 0.5), (0.003, 0.01, 0.03, 0.1)),
    "balanced cross-entropy": (lambda: CrossEntropy(0.5, 0.5, balanced=True), (0.003, 0.01, 0.03, 0.1)),
    "STACO": (lambda: STACO(0.5, 0.5), (None,)),
}


def train(data: LIBSVMDataModule, algorithm: Algorithm, lr: float | None) -> tuple[Trainer, TPAUCModule]:
    module = TPAUCModule(Linear(22), algorithm, None if lr is None else partial(torch.optim.Adam, lr=lr))
    trainer = Trainer(
        accelerator="cpu", max_epochs=-1, max_steps=STEPS, check_val_every_n_epoch=None, val_check_interval=STEPS // 10,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, logger=False,
    )  # fmt: skip
    trainer.fit(module, data)
    return trainer, module


def main(root: str, cache: str) -> None:
    splits = [LIBSVMDataModule(
        root, "ijcnn1.bz2", "ijcnn1.t.bz2", download=True, cache_dir=cache, val_fraction=0.2, split_seed=seed,
        seed=seed, batch_size=65536,
    ) for seed in SEEDS]  # fmt: skip
    splits[0].prepare_data()  # so that a missing network is noticed first
    print(
        "medians over splits     validation    test TPAUC  (lowest, highest)  AUROC       lr   ahead of cross-entropy"
    )
    baseline: list[float] = []
    for name, (method, rates) in METHODS.items():
        runs = {lr: [(data, *train(data, method(), lr)) for data in splits] for lr in rates}
        val = {lr: median(t.validate(m, d, verbose=False)[0]["val/tpauc"] for d, t, m in runs[lr]) for lr in rates}
        lr = max(rates, key=val.__getitem__)
        tests = [trainer.test(module, data, verbose=False)[0] for data, trainer, module in runs[lr]]
        areas, aurocs = ([test[f"test/{metric}"] for test in tests] for metric in ("tpauc", "auroc"))
        baseline = baseline or areas
        ahead = sum(ours > theirs for ours, theirs in zip(areas, baseline, strict=True))
        spread = f"{median(areas):.3f}  ({min(areas):.3f}, {max(areas):.3f})"
        rate = "default" if lr is None else f"{lr:g}"
        print(f"{name:<24}{val[lr]:>10.3f}{spread:>31}{median(aurocs):>8.3f}{rate:>9}   on {ahead} of {len(areas)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", default="data/ijcnn1", help="folder of ijcnn1.bz2 and ijcnn1.t.bz2")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    try:
        with tempfile.TemporaryDirectory() as folder:  # the files are parsed once for all splits
            main(parser.parse_args().data_root, folder)
    except TPAUCError as error:
        sys.exit(f"quickstart.py: error: {error}")
