"""Which threshold inside the rectangle would a user choose? Rates of each criterion on examples that chose nothing.

python -m benchmarks.threshold_default

Training files alone: a model is trained on a part, the threshold is chosen on a second and judged on a third, for five
divisions. `closest` (to the corner of no errors) and `g-mean` are computed here for comparison.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits, load_svmlight_file
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.common import arguments, header
from lightning_tpauc.functional import count_decisions, decision_threshold, roc_polyline
from lightning_tpauc.functional.roc import roc_points

CRITERIA = ("max_sensitivity", "youden", "f1", "closest", "g-mean", "max_specificity")
RECTANGLES = [(0.5, 0.5), (0.8, 0.2)]


def problems(root: Path) -> dict[str, tuple[Any, Any]]:
    digits = load_digits()
    found = {"digits, 8": (digits.data, digits.target == 8)}
    for name, file in (("ijcnn1", "ijcnn1/ijcnn1.bz2"), ("adult", "adult/adult.trn.bz2")):
        if (root / file).exists():
            x, y = load_svmlight_file(str(root / file))
            found[name] = x.toarray(), y > 0
    if (root / "letter/letter.csv.gz").exists():
        table = np.genfromtxt(root / "letter/letter.csv.gz", delimiter=",", dtype=str, skip_header=1)
        column = next(k for k in range(table.shape[1]) if table[0, k].isalpha())
        found["letter, H"] = np.delete(table, column, 1).astype(float), table[:, column] == "H"
    return found


def chosen(scores: torch.Tensor, labels: torch.Tensor, rectangle: tuple[float, float], criterion: str) -> float:
    """The threshold of a criterion."""
    if criterion in ("closest", "g-mean"):
        fpr, tpr, thresholds = roc_points(scores, labels, drop_collinear=False)
        inside = (tpr >= rectangle[0]) & (fpr <= rectangle[1])
        value = -torch.hypot(fpr, 1 - tpr) if criterion == "closest" else tpr * (1 - fpr)
        if bool(inside.any()):
            return float(thresholds[int(torch.where(inside, value, -math.inf).argmax())])
        criterion = "youden"
    found = decision_threshold(scores, labels, *rectangle, criterion)  # type: ignore[arg-type]  # one of ours
    return math.inf if found is None else found.threshold


def main(args: list[str] | None = None) -> None:
    options = arguments(__doc__, args)
    header("sensitivity / specificity / precision on new examples, mean of five divisions")
    root = Path(os.environ.get("TPAUC_DATA", "../shared/data"))
    models: dict[str, Any] = {
        "logistic": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)),
        "trees": lambda: HistGradientBoostingClassifier(max_iter=50),
    }
    print(f"| data, model | AUROC | TPR, FPR | {' | '.join(CRITERIA)} |\n|---|---|---|{'---|' * len(CRITERIA)}")
    for name, (x, y) in problems(root).items():
        for model, make in list(models.items())[: 1 if options.quick else 2]:
            rates: dict[Any, list[Any]] = {}
            areas = []
            for rest, new in StratifiedKFold(5, shuffle=True, random_state=0).split(x, y):
                fit, choose = rest[np.arange(len(rest)) % 4 > 0], rest[np.arange(len(rest)) % 4 == 0]
                score = make().fit(x[fit], y[fit]).predict_proba
                scores = [torch.from_numpy(score(x[rows])[:, 1]).logit() for rows in (choose, new)]
                labels = [torch.from_numpy(y[rows].astype(int)) for rows in (choose, new)]
                fpr, tpr = roc_polyline(scores[1], labels[1])
                areas.append(float(torch.trapezoid(tpr, fpr)))
                for rectangle in RECTANGLES:
                    for criterion in CRITERIA:
                        cut = chosen(scores[0], labels[0], rectangle, criterion)
                        found = count_decisions(scores[1], labels[1], cut)
                        each = (found.sensitivity, found.specificity, found.precision)
                        rates.setdefault((rectangle, criterion), []).append(each)
            for rectangle in RECTANGLES:
                means = [np.nanmean(rates[rectangle, criterion], 0) for criterion in CRITERIA]
                cells = " | ".join(" / ".join(f"{rate:.2f}".lstrip("0") for rate in mean) for mean in means)
                print(f"| {name}, {model} | {np.mean(areas):.3f} | {rectangle} | {cells} |", flush=True)
            if options.quick:
                break
        if options.quick:
            break


if __name__ == "__main__":
    main()
