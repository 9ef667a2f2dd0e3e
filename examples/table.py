"""A CSV file from end to end: train, judge, choose a threshold, predict with the rows' own ids.

`python examples/table.py FILE --label COLUMN --id COLUMN` reads numbers from all other columns. Takes seconds.
"""

import argparse
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from lightning.pytorch import Trainer, seed_everything
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from lightning_tpauc import PosNegDataModule, TPAUCModule, TwoWayPartialAUROC
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.functional import bootstrap_interval
from lightning_tpauc.models import Linear

MIN_TPR, MAX_FPR = 0.8, 0.2  # find four of five, with a false alarm for at most one in five of the others


def write_sample(path: Path) -> None:
    frame = load_breast_cancer(as_frame=True).frame
    frame.insert(0, "patient", [f"P{row:04d}" for row in range(len(frame))])
    frame["malignant"] = 1 - frame.pop("target")  # scikit-learn has 1 for benign
    frame.to_csv(path, index=False)


def scores_of(trainer: Trainer, model: TPAUCModule, rows: pd.DataFrame) -> torch.Tensor:
    batches: Any = trainer.predict(model, PosNegDataModule(predict_dataset=rows.to_numpy()))
    return torch.cat([batch["score"] for batch in batches])


def best_threshold(scores: torch.Tensor, labels: torch.Tensor) -> tuple[float, float, float]:
    """(threshold, TPR, FPR): of the ROC points with FPR <= MAX_FPR the one that finds most."""
    metric = TwoWayPartialAUROC(MIN_TPR, MAX_FPR)
    metric.update(scores, labels)
    fpr, tpr, thresholds = metric.roc()
    best = int(tpr[fpr <= MAX_FPR].argmax())
    return float(thresholds[best]), float(tpr[best]), float(fpr[best])


def main(path: Path, label: str, key: str) -> None:
    seed_everything(0, verbose=False)
    frame = pd.read_csv(path, index_col=key)
    train, test = train_test_split(frame, test_size=0.3, stratify=frame[label], random_state=0)
    train, val = train_test_split(train, test_size=0.3, stratify=train[label], random_state=0)
    features = [name for name in frame if name != label]
    mean, std = train[features].mean(), train[features].std()
    x = {name: (part[features] - mean) / std for name, part in (("train", train), ("val", val), ("test", test))}
    y = {name: torch.tensor(part[label].to_numpy()) for name, part in (("train", train), ("val", val), ("test", test))}

    data = PosNegDataModule((x["train"], y["train"]), val_dataset=(x["val"], y["val"]))
    model = TPAUCModule(Linear(len(features)), STACO(MIN_TPR, MAX_FPR))
    trainer = Trainer(accelerator="cpu", max_epochs=60, logger=False, enable_checkpointing=False)
    trainer.fit(model, data)

    threshold, tpr, fpr = best_threshold(scores_of(trainer, model, x["val"]), y["val"])
    print(f"validation: threshold {threshold:.3f} finds {tpr:.0%} with false alarms for {fpr:.0%} of the others")
    scores = scores_of(trainer, model, x["test"])
    area, low, high = bootstrap_interval(scores, y["test"], MIN_TPR, MAX_FPR)
    alarm, sick = scores >= threshold, y["test"] == 1
    print(f"test: TPAUC {area:.3f}, 95% interval {low:.3f} to {high:.3f}; ", end="")
    print(f"{alarm[sick].float().mean():.0%} found, false alarms for {alarm[~sick].float().mean():.0%}")
    columns = {"score": scores.numpy(), "decision": alarm.int().numpy()}
    pd.DataFrame(columns, index=test.index).to_csv("predictions.csv")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", nargs="?", default="breast_cancer.csv", type=Path, help="made if it is not there")
    parser.add_argument("--label", default="malignant", help="column of 0 and 1")
    parser.add_argument("--id", default="patient", help="column that names the rows")
    args = parser.parse_args()
    if not args.csv.exists():
        write_sample(args.csv)
    main(args.csv, args.label, args.id)
