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

from lightning_tpauc import DecisionThreshold, PosNegDataModule, PredictionWriter, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.functional import bootstrap_interval
from lightning_tpauc.models import Linear

MIN_TPR, MAX_FPR = 0.8, 0.2  # find four of five, with a false alarm for at most one in five of the others


def write_sample(path: Path) -> None:
    frame = load_breast_cancer(as_frame=True).frame
    frame.insert(0, "patient", [f"P{row:04d}" for row in range(len(frame))])
    frame["malignant"] = 1 - frame.pop("target")  # scikit-learn has 1 for benign
    frame.to_csv(path, index=False)


def main(path: Path, label: str, key: str) -> None:
    seed_everything(0, verbose=False)
    frame = pd.read_csv(path, index_col=key)
    train, test = train_test_split(frame, test_size=0.3, stratify=frame[label], random_state=0)
    train, val = train_test_split(train, test_size=0.3, stratify=train[label], random_state=0)
    features = [name for name in frame if name != label]
    mean, std = train[features].mean(), train[features].std()
    parts = [((part[features] - mean) / std, part[label]) for part in (train, val, test)]

    data = PosNegDataModule(parts[0], parts[1], parts[2], predict_dataset=parts[2][0])
    model = TPAUCModule(Linear(len(features)), STACO(MIN_TPR, MAX_FPR))
    callbacks = [DecisionThreshold("max_sensitivity", calibration="sigmoid"), PredictionWriter("predictions.csv")]
    trainer = Trainer(accelerator="cpu", max_epochs=60, callbacks=callbacks, logger=False, enable_checkpointing=False)
    trainer.fit(model, data)
    point: Any = model.operating_point
    found, alarms = point.decisions.sensitivity, 1 - point.decisions.specificity
    print(f"validation: score >= {point.threshold:.3f} finds {found:.0%}, false alarms for {alarms:.0%} of the others")

    tested = trainer.test(model, data, verbose=False)[0]
    trainer.predict(model, data)  # writes example_id, id, score, probability and decision
    predictions = pd.read_csv("predictions.csv", index_col="id")
    scores, labels = torch.tensor(predictions["score"].to_numpy()), torch.tensor(test[label].to_numpy())
    area, low, high = bootstrap_interval(scores, labels, MIN_TPR, MAX_FPR)
    print(f"test: TPAUC {area:.3f}, 95% interval {low:.3f} to {high:.3f}")
    for name in ("sensitivity", "specificity", "precision"):
        value, lower, upper = (tested[f"test/{name}_at_threshold{end}"] for end in ("", "_lower", "_upper"))
        print(f"test: {name} {value:.3f}, 95% interval {lower:.3f} to {upper:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", nargs="?", default="breast_cancer.csv", type=Path, help="made if it is not there")
    parser.add_argument("--label", default="malignant", help="column of 0 and 1")
    parser.add_argument("--id", default="patient", help="column that names the rows")
    args = parser.parse_args()
    if not args.csv.exists():
        write_sample(args.csv)
    main(args.csv, args.label, args.id)
