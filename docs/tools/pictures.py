"""Draws the pictures of README and docs: `python docs/tools/pictures.py --data-root data/ijcnn1`.

One explains the metric on scores that are drawn here. The other shows the first split of `examples/quickstart.py`, each
method with the learning rate that its table names; it trains three linear models, and takes a minute.
"""

import argparse
import runpy
import tempfile
from pathlib import Path
from typing import Any

import matplotlib
import torch

from lightning_tpauc import LIBSVMDataModule, TwoWayPartialAUROC

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
RATES = {"cross-entropy": 0.01, "balanced cross-entropy": 0.03, "STACO": None}
COLOURS = {"cross-entropy": "#8a8f98", "balanced cross-entropy": "#3c8dbc", "STACO": "#c2410c"}


def rectangle() -> None:
    generator = torch.Generator().manual_seed(3)
    target = (torch.rand(3000, generator=generator) < 0.2).long()
    metric = TwoWayPartialAUROC(min_tpr=0.5, max_fpr=0.5)
    metric.update(torch.randn(3000, generator=generator) + 1.1 * target, target)
    figure, axes = metric.plot()
    note = {"fontsize": 10, "color": "#4a4f57"}
    axes.annotate("find at least half\n(min_tpr)", (0.42, 0.5), (0.46, 0.24), arrowprops={"arrowstyle": "-"}, **note)
    axes.annotate(
        "false alarms for at\nmost half (max_fpr)", (0.5, 0.6), (0.7, 0.53), arrowprops={"arrowstyle": "-"}, **note
    )
    save(figure, "rectangle.png")


def quickstart(root: str) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "quickstart.py"))
    pyplot: Any = __import__("matplotlib.pyplot").pyplot
    figure, axes = pyplot.subplots(figsize=(6.4, 5.2), layout="constrained")
    axes.add_patch(pyplot.Rectangle((0, 0.5), 0.5, 0.5, color="#f2a33a", alpha=0.16, linewidth=0))
    with tempfile.TemporaryDirectory() as cache:
        data = LIBSVMDataModule(
            root, "ijcnn1.bz2", "ijcnn1.t.bz2", download=True, cache_dir=cache, val_fraction=0.2, batch_size=65536
        )
        for name, (method, _) in example["METHODS"].items():
            _, module = example["train"](data, method(), RATES[name])
            data.setup("test")
            metric = TwoWayPartialAUROC(0.5, 0.5, ignore_index=-1)
            for batch in data.test_dataloader():
                with torch.no_grad():
                    metric.update(module.raw_scores(batch.inputs), batch.target)
            fpr, tpr, _ = metric.roc()
            label = f"{name}, TPAUC {float(metric.compute()):.3f}"
            axes.plot(fpr, tpr, color=COLOURS[name], linewidth=2, label=label)
    axes.set(xlim=(0, 0.6), ylim=(0.4, 1.0), xlabel="False positive rate", ylabel="True positive rate")
    axes.set_title("ijcnn1, linear model, 1000 steps: test file", fontsize=11, loc="left")
    axes.legend(loc="lower right", frameon=False)
    axes.grid(visible=True, alpha=0.2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    save(figure, "quickstart.png")


def save(figure: Any, name: str) -> None:
    IMAGES.mkdir(exist_ok=True)
    figure.savefig(IMAGES / name, dpi=120, metadata={"Software": None})
    print(f"{IMAGES / name}: {(IMAGES / name).stat().st_size // 1024} KB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", default="data/ijcnn1", help="folder of ijcnn1.bz2 and ijcnn1.t.bz2")
    args = parser.parse_args()
    matplotlib.use("agg")
    rectangle()
    quickstart(args.data_root)
