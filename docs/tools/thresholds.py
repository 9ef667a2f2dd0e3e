"""Draws what examples buy for a threshold, docs/images/thresholds.png: `python docs/tools/thresholds.py`.

Scores are normal, those of positives two standard deviations higher. 400 draws for each number of negatives.
"""

from pathlib import Path
from typing import Any

import matplotlib
import torch

from lightning_tpauc.errors import TooFewExamplesError
from lightning_tpauc.functional import decision_threshold

SIZES = (30, 50, 100, 200, 500, 1000, 2000, 5000)
MAX_FPR, DRAWS = 0.1, 400
COLOURS = {None: "#8a8f98", 0.95: "#c2410c"}


def draws(size: int, confidence: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Sensitivity and false positive rate for the population, of each draw."""
    generator, found = torch.Generator().manual_seed(size), []
    target = (torch.arange(size + 200) >= size).long()
    for _ in range(DRAWS):
        scores = torch.randn(size + 200, generator=generator) + 2 * target
        try:
            chosen = decision_threshold(
                scores, target, 0.0, MAX_FPR, "max_sensitivity", validate_args=False, confidence=confidence
            )
        except TooFewExamplesError:
            continue
        found.append(chosen.threshold if chosen is not None else float("inf"))
    cuts = torch.tensor(found, dtype=torch.float64)
    return torch.special.ndtr(2 - cuts), torch.special.ndtr(-cuts)


def main() -> None:
    matplotlib.use("agg")
    pyplot: Any = __import__("matplotlib.pyplot").pyplot
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    best = float(torch.special.ndtr(2 + torch.special.ndtri(torch.tensor(MAX_FPR, dtype=torch.float64))))
    left.axhline(best, color="#4a4f57", linewidth=1, linestyle=":")
    left.annotate("best possible at 10% false alarms", (5000, best), (5000, best + 0.012), ha="right", fontsize=8)
    right.axhline(0.05, color="#4a4f57", linewidth=1, linestyle=":")
    for confidence, colour in COLOURS.items():
        found = {size: draws(size, confidence) for size in SIZES}
        found = {size: each for size, each in found.items() if len(each[0])}
        ends = torch.stack([tpr.quantile(torch.tensor([0.1, 0.5, 0.9]).double()) for tpr, _ in found.values()], 1)
        broken = [float((fpr > MAX_FPR).double().mean()) for _, fpr in found.values()]
        label = "as the examples are" if confidence is None else "with room for 95% confidence"
        left.plot(list(found), ends[1], color=colour, marker="o", markersize=4, label=label)
        left.fill_between(list(found), ends[0], ends[2], color=colour, alpha=0.18, linewidth=0)
        right.plot(list(found), broken, color=colour, marker="o", markersize=4, label=label)
        for size in (50, 200, 2000):
            share = broken[[*found].index(size)]
            print(f"{size} negatives, {label}: {float(found[size][0].median()):.2f}, broken {share:.0%}")
    left.set(ylim=(0.3, 1), ylabel="sensitivity, median and 80% of draws", title="What is found")
    right.set(ylim=(0, 0.7), ylabel="share of draws", title="How often new examples have more than 10%")
    for axes in (left, right):
        axes.set(xscale="log", xlabel="negatives that choose the threshold", xticks=[50, 200, 1000, 5000])
        axes.set_xticklabels(["50", "200", "1,000", "5,000"])
        axes.minorticks_off()
        axes.title.set_fontsize(10)
        axes.grid(visible=True, alpha=0.2)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    right.legend(frameon=False, fontsize=8)
    path = Path(__file__).resolve().parents[1] / "images" / "thresholds.png"
    figure.savefig(path, dpi=120, metadata={"Software": None})
    print(f"{path}: {path.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main()
