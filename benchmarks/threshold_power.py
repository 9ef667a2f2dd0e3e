"""How much a threshold finds that keeps FPR <= 0.1 at 95% confidence, beside the risk control of MAPIE.

python -m benchmarks.threshold_power

Scores are normal, those of 100 positives two standard deviations higher; the rates are those of the population. MAPIE
is optional, `pip install mapie`; it gets probabilities, and tests the 100 thresholds that it takes by default.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.common import arguments, header, verdict
from lightning_tpauc.functional import decision_threshold

SHIFT, MAX_FPR, NUM_POS = 2.0, 0.1, 100


def ours(scores: torch.Tensor, target: torch.Tensor) -> float:
    found = decision_threshold(scores, target, 0.0, MAX_FPR, "max_sensitivity", confidence=0.95)
    return math.inf if found is None else found.threshold


def risk_control(scores: torch.Tensor, target: torch.Tensor, method: str) -> float:
    from mapie.risk_control import BinaryClassificationController  # type: ignore[import-not-found]

    probability = (scores - SHIFT / 2).mul(SHIFT).sigmoid().numpy()  # the true one, but for the classes' shares

    def predict_proba(rows: Any) -> Any:
        return np.stack([1 - probability[rows], probability[rows]], 1)

    controller = BinaryClassificationController(
        predict_proba, "fpr", MAX_FPR, 0.95, best_predict_param_choice="recall", fwer_method=method
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        controller.calibrate(np.arange(len(target)), target.numpy())
    best = controller.best_predict_param
    if best is None:
        return math.inf
    best = min(max(float(np.ravel(best)[0]), 1e-12), 1 - 1e-12)
    return math.log(best / (1 - best)) / SHIFT + SHIFT / 2


def rates(choose: Callable[..., float], num_neg: int, draws: int) -> tuple[float, float]:
    """Mean true positive rate, and the share of draws that break the demand."""
    generator, cuts = torch.Generator().manual_seed(num_neg), []
    target = (torch.arange(num_neg + NUM_POS) >= num_neg).long()
    for _ in range(draws):
        scores = torch.randn(num_neg + NUM_POS, generator=generator, dtype=torch.float64) + SHIFT * target
        cuts.append(choose(scores, target))
    cut = torch.tensor(cuts, dtype=torch.float64)
    broken = torch.special.ndtr(-cut) > MAX_FPR
    return float(torch.special.ndtr(SHIFT - cut).mean()), float(broken.double().mean())


def main(args: list[str] | None = None) -> None:
    options = arguments(__doc__, args)
    draws, sizes = (20, (200,)) if options.quick else (500, (50, 200, 500, 2000))
    header(f"TPR that FPR <= {MAX_FPR} leaves, mean of {draws} draws, and how often the demand is broken")
    methods = ("bonferroni_holm", "fixed_sequence") if importlib.util.find_spec("mapie") else ()
    choosers: dict[str, Callable[..., float]] = {
        "ours": ours,
        **{f"MAPIE, {name}": partial(risk_control, method=name) for name in methods},
    }
    print(f"| negatives | {' | '.join(choosers)} |\n|---|{'---|' * len(choosers)}")
    for size in sizes:
        found = {name: rates(choose, size, draws) for name, choose in choosers.items()}
        cells = " | ".join(f"{tpr:.3f}, {100 * broken:.1f}%" for tpr, broken in found.values())
        print(f"| {size} | {cells} |", flush=True)
        for name in list(choosers)[1:]:
            ahead = found["ours"][0] - found[name][0]
            verdict(f"TPR of ours less {name}'s, {size} negatives", ahead, -0.01, at_least=True)


if __name__ == "__main__":
    main()
