"""Tox21's twelve assays at once, GIN: STACO with its defaults beside cross-entropy, masked and balanced for each task.

All sides see as many examples in as many steps. Those of cross-entropy are trained at several rates, and the rate with
the best validation value (the mean over the tasks) counts; STACO has the module's defaults. The weights that validated
best are tested. Every finished training is a file, and a second run goes on where the first one ended.

    python -m benchmarks.tox21_tasks --seeds 5 --folder results_tox21
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import seed_everything
from torch import Tensor

from benchmarks.common import arguments, bare_trainer, data_folder, header, quiet
from lightning_tpauc import SMILESDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO, Algorithm, CrossEntropy
from lightning_tpauc.functional import bootstrap_interval, two_way_partial_auroc
from lightning_tpauc.models import GIN

NAMES = [
    *("NR-AR", "NR-AR-LBD", "NR-AhR", "NR-Aromatase", "NR-ER", "NR-ER-LBD", "NR-PPAR-gamma"),
    *("SR-ARE", "SR-ATAD5", "SR-HSE", "SR-MMP", "SR-p53"),
]


class Side(NamedTuple):
    """A method and the learning rates of Adam to choose from; ``None`` is the module's default optimizer."""

    algorithm: Callable[[], Algorithm]
    rates: tuple[float | None, ...]


SIDES = {
    "STACO": Side(STACO, (None,)),
    "STACO, per positive": Side(partial(STACO, duals="per_positive"), (None,)),
    "cross-entropy": Side(partial(CrossEntropy, average=False), (0.001, 0.003, 0.01)),
    "balanced": Side(partial(CrossEntropy, balanced=True, average=False), (0.001, 0.003, 0.01)),
}


def train(side: str, rate: float | None, seed: int, steps: int, cache: Path) -> dict[str, Any]:
    """One training; returns the validation value and the scores of the test set."""
    seed_everything(seed, workers=True, verbose=False)
    folder = data_folder() / "tox21"
    data = SMILESDataModule("tox21.csv.gz", NAMES, root=str(folder), cache_dir=str(cache), seed=seed)
    adam = None if rate is None else partial(torch.optim.Adam, lr=rate)
    module = TPAUCModule(GIN(num_labels=len(NAMES)), SIDES[side].algorithm(), adam)
    trainer = bare_trainer(max_steps=steps, max_epochs=-1, val_check_interval=steps // 10, check_val_every_n_epoch=None)
    start = time.process_time()
    trainer.fit(module, data)
    seconds = time.process_time() - start
    values = trainer.validate(module, data, verbose=False)[0]
    module.eval()
    with torch.no_grad():
        rows = [(module.raw_scores(batch.inputs), batch.target) for batch in data.test_dataloader()]
    scores, target = (torch.cat(parts) for parts in zip(*rows, strict=True))
    return {"val": values["val/tpauc"], "scores": scores, "target": target, "seconds": seconds}


def areas(scores: Tensor, target: Tensor) -> list[float]:
    """The two-way partial AUC of each task on the molecules that it was measured on."""
    columns = zip(scores.unbind(1), target.unbind(1), strict=True)
    return [float(two_way_partial_auroc(s[t >= 0], t[t >= 0])) for s, t in columns]


def macro_interval(runs: list[dict[str, Any]], resamples: int = 500) -> tuple[float, float]:
    """95% of the means over tasks and seeds when the test molecules are drawn again."""
    generator = np.random.default_rng(0)
    count = len(runs[0]["target"])
    means = []
    for _ in range(resamples):
        rows = torch.from_numpy(generator.integers(count, size=count))
        means.append(statistics.fmean(statistics.fmean(areas(r["scores"][rows], r["target"][rows])) for r in runs))
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def chosen(folder: Path, side: str, seeds: int) -> list[dict[str, Any]]:
    """The trainings of a method at the rate with the best mean validation value."""
    by_rate = {}
    for rate in SIDES[side].rates:
        files = [folder / f"{side}-{rate}-{seed}.pt" for seed in range(seeds)]
        runs = [torch.load(file, weights_only=True) for file in files if file.exists()]
        if runs:
            by_rate[rate] = runs
            mean = statistics.fmean(run["val"] for run in runs)
            seconds = statistics.fmean(run["seconds"] for run in runs)
            print(f"{side} at {rate or 'the default'}: validation {mean:.4f}, {len(runs)} seeds, {seconds:.0f} s each")
    return max(by_rate.values(), key=lambda runs: statistics.fmean(run["val"] for run in runs), default=[])


def report(folder: Path, seeds: int) -> None:
    """The table of all finished trainings."""
    found = {side: runs for side in SIDES if (runs := chosen(folder, side, seeds))}
    print(f"\n| task | positives in test | {' | '.join(found)} |\n|---|---|{'---|' * len(found)}")
    for k, name in enumerate(NAMES):
        cells = []
        for runs in found.values():
            mean = statistics.fmean(areas(run["scores"], run["target"])[k] for run in runs)
            known = runs[0]["target"][:, k] >= 0
            first = bootstrap_interval(runs[0]["scores"][known, k], runs[0]["target"][known, k])
            cells.append(f"{mean:.3f} ({first.lower:.3f} to {first.upper:.3f})")
        positives = int((next(iter(found.values()))[0]["target"][:, k] == 1).sum())
        print(f"| {name} | {positives} | {' | '.join(cells)} |")
    cells = []
    for runs in found.values():
        mean = statistics.fmean(statistics.fmean(areas(run["scores"], run["target"])) for run in runs)
        low, high = macro_interval(runs)
        cells.append(f"{mean:.3f} ({low:.3f} to {high:.3f})")
    print(f"| mean | | {' | '.join(cells)} |")


def main(args: list[str] | None = None) -> None:
    """Train what is missing, and print the table."""
    parsed = arguments(__doc__, args, seeds=1, steps=1000, folder="results_tox21_tasks", cache="")
    quiet()
    header("Tox21, 12 tasks")
    folder = Path(parsed.folder)
    folder.mkdir(parents=True, exist_ok=True)
    steps = 20 if parsed.quick else parsed.steps
    for seed in range(parsed.seeds):
        for side, (_, rates) in SIDES.items():
            for rate in rates:
                file = folder / f"{side}-{rate}-{seed}.pt"
                if not file.exists():
                    torch.save(train(side, rate, seed, steps, Path(parsed.cache or folder)), file)
    report(folder, parsed.seeds)


if __name__ == "__main__":
    main()
