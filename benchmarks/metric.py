"""The metric on ten million scores: time and memory, beside the one-way partial AUC of scikit-learn and torchmetrics.

python -m benchmarks.metric
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sklearn.metrics import roc_auc_score
from torchmetrics.classification import BinaryAUROC

from benchmarks.common import arguments, compare, header, once, verdict
from lightning_tpauc import TwoWayPartialAUROC


def peak_mib(work: Callable[[], Any]) -> float:
    """Memory that ``work`` adds at its peak; Linux only."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # freed memory goes back to the system, so that it can't be used unseen
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak

    def read(field: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024

    before = read("VmRSS")
    work()
    return read("VmHWM") - before


def main(args: list[str] | None = None) -> None:
    options = arguments(__doc__, args)
    size = 2_000_000 if options.quick else 10_000_000
    header(f"metric, {size:,} scores, one in twenty positive")
    generator = torch.Generator().manual_seed(0)
    target = (torch.rand(size, generator=generator) < 0.05).long()
    scores = torch.randn(size, generator=generator) + target
    probabilities = scores.sigmoid()
    arrays = target.numpy(), scores.numpy()

    def ours() -> Any:
        metric = TwoWayPartialAUROC(min_tpr=0.5, max_fpr=0.5)
        metric.update(scores, target)
        return metric.compute()

    def torchmetrics() -> Any:
        metric = BinaryAUROC(max_fpr=0.5)
        metric.update(probabilities, target)
        return metric.compute()

    works = {
        "TwoWayPartialAUROC(0.5, 0.5)": ours,
        "sklearn roc_auc_score(max_fpr=0.5)": lambda: roc_auc_score(*arrays, max_fpr=0.5),
        "torchmetrics BinaryAUROC(max_fpr=0.5)": torchmetrics,
    }
    clocks = compare({name: partial(once, work) for name, work in works.items()}, 3 if options.quick else 7)
    names = list(works)
    for name in names[1:]:
        verdict(f"{name} / ours", clocks[name].over(clocks[names[0]]), 3.0, at_least=True)
    memory = {name: peak_mib(work) for name, work in works.items()}
    print("| side | peak MiB beside the inputs |\n|---|---|")
    for name, mib in memory.items():
        print(f"| {name} | {mib:.0f} |")
    for name in names[1:]:
        verdict(f"memory of ours / {name}", memory[names[0]] / memory[name], 1.0)


if __name__ == "__main__":
    main()
