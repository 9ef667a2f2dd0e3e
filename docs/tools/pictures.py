"""Draws the pictures of README and docs: `python docs/tools/pictures.py --data-root data/ijcnn1`.

`rectangle` explains the metric on scores that are drawn here. `quickstart` shows the first split of
`examples/quickstart.py`, each method with the learning rate that its table names; it trains three linear models, and
takes a minute. `gallery` shows what a run and a comparison draw, `benchmarks` the tables of benchmarks/README.md.
`--only NAME` draws one of them.
"""

import argparse
import re
import runpy
import shutil
import tempfile
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger

from lightning_tpauc import (
    STACO,
    LIBSVMDataModule,
    PosNegDataModule,
    ROCFigure,
    TPAUCModule,
    TwoWayPartialAUROC,
    compare,
)
from lightning_tpauc.metrics.figures import SHOW
from lightning_tpauc.models import Linear

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
RATES = {"cross-entropy": 0.03, "balanced cross-entropy": 0.03, "STACO": None}
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


class Pictures(CSVLogger):
    """Keeps what `ROCFigure` draws last."""


def problem() -> PosNegDataModule:
    """One in ten is positive: most are easy, the others look the wrong way in what tells the easy ones."""
    generator = torch.Generator().manual_seed(0)
    x, share = torch.randn(12000, 6, generator=generator), torch.rand(2, 12000, generator=generator)
    y = share[0] < 0.1
    x[:, 1] += 1.5 * y
    x[:, 0] += torch.where(y, torch.where(share[1] < 0.6, 3.0, -1.0), 0.0)
    y = y.long()
    return PosNegDataModule((x[:4000], y[:4000]), test_dataset=(x[4000:], y[4000:]), val_fraction=0.25)


def gallery() -> None:
    SHOW["Pictures"] = lambda _, name, figure, __: save(figure, f"gallery-{name.split('/')[1]}.png")
    with tempfile.TemporaryDirectory() as folder:
        seed_everything(0, verbose=False)
        trainer = Trainer(
            max_epochs=20, accelerator="cpu", logger=Pictures(folder), callbacks=[ROCFigure(20)], log_every_n_steps=5,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(TPAUCModule(Linear(6), STACO(min_tpr=0.5, max_fpr=0.3)), problem())
        (path,) = Path(folder).rglob("metrics.csv")
        curves(pd.read_csv(path).set_index("step"))
        compare(
            lambda: Linear(6), problem(), f"{folder}/out", min_tpr=0.5, max_fpr=0.3, max_epochs=12, seeds=1, trials=2,
            accelerator="cpu",
        )  # fmt: skip
        shutil.copy(f"{folder}/out/roc.png", IMAGES / "gallery-compare-roc.png")
        shutil.copy(f"{folder}/out/training.png", IMAGES / "gallery-compare-training.png")


def curves(logged: pd.DataFrame) -> None:
    """What `docs/curves.md` describes."""
    pyplot: Any = __import__("matplotlib.pyplot").pyplot
    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(10, 3), layout="constrained")
    for axes, names in (
        (left, ("val/tpauc", "val/auroc")),
        (middle, ("train/loss",)),
        (right, ("train/min_tpr", "train/max_fpr")),
    ):
        for name in names:
            logged[name].dropna().plot(ax=axes, label=name)
        axes.set(xlabel="step")
        axes.legend()
        axes.grid(visible=True, alpha=0.2)
    save(figure, "gallery-curves.png")


def benchmarks() -> None:
    """The rows "... times faster" of the table, on a logarithmic axis."""
    rows, what, beside = [], "", ""
    for line in (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
        if len(cells) == 7:
            what = re.sub(r" \(20.*?\)", "", cells[1]) or what
            beside = re.sub(r"\s*\b[\d.]+ (ms|us|s)\b.*", "", cells[3]) or beside
            found = re.match(r"([\d.]+) times faster", cells[4])
            if found and float(found[1]) >= 2:
                rows.append((f"{what}\nbeside {beside}", float(found[1])))
    pyplot: Any = __import__("matplotlib.pyplot").pyplot
    figure, axes = pyplot.subplots(figsize=(8, 0.5 * len(rows) + 0.6), layout="constrained")
    names, ratios = zip(*rows[::-1], strict=True)
    axes.bar_label(axes.barh(names, ratios, color=COLOURS["balanced cross-entropy"]), fmt="%g times", padding=4)
    axes.set(xscale="log", xlim=(1, 2000), xlabel="times faster")
    axes.tick_params(axis="y", labelsize=8)
    save(figure, "benchmarks.png")


def save(figure: Any, name: str) -> None:
    IMAGES.mkdir(exist_ok=True)
    figure.savefig(IMAGES / name, dpi=120, metadata={"Software": None})
    print(f"{IMAGES / name}: {(IMAGES / name).stat().st_size // 1024} KB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", default="data/ijcnn1", help="folder of ijcnn1.bz2 and ijcnn1.t.bz2")
    parser.add_argument("--only", choices=("rectangle", "quickstart", "gallery", "benchmarks"))
    args = parser.parse_args()
    matplotlib.use("agg")
    drawn = {
        "rectangle": rectangle,
        "quickstart": lambda: quickstart(args.data_root),
        "gallery": gallery,
        "benchmarks": benchmarks,
    }
    for name, draw in drawn.items():
        if args.only in (None, name):
            draw()
