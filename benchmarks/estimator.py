"""`TPAUCClassifier` beside scikit-learn's classifiers and `TPAUCModule`: TPAUC on test files, and seconds of a fit.

All have their defaults. `TPAUCModule` has the classifier's network and steps, and inputs standardised in the same way.

    python -m benchmarks.estimator
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from lightning.pytorch import seed_everything
from sklearn.datasets import load_svmlight_file, make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.common import arguments, bare_trainer, data_folder, header, now, quiet
from lightning_tpauc import STACO, PosNegDataModule, TPAUCClassifier, TPAUCModule
from lightning_tpauc.functional import two_way_partial_auroc
from lightning_tpauc.models import MLP

FILES = {"adult": ("adult.trn.bz2", "adult.tst.bz2", 123), "ijcnn1": ("ijcnn1.bz2", "ijcnn1.t.bz2", 22)}
RECTANGLES = ((0.5, 0.5), (0.8, 0.2))
Scores = Callable[[Any, Any, Any, tuple[float, float], int], Any]


def load(name: str, file: str, columns: int) -> tuple[Any, Any]:
    x, y = load_svmlight_file(str(data_folder() / name / file), n_features=columns)
    return x.toarray(), (y > 0).astype(int)


def classifier(x: Any, y: Any, test: Any, rectangle: tuple[float, float], seed: int) -> Any:
    return TPAUCClassifier(*rectangle, random_state=seed).fit(x, y).decision_function(test)


def module(x: Any, y: Any, test: Any, rectangle: tuple[float, float], seed: int) -> Any:
    seed_everything(seed, verbose=False)
    scaler = StandardScaler().fit(x)
    data = PosNegDataModule((scaler.transform(x), y), val_fraction=0.2, split_seed=seed, seed=seed, batch_size=8192)
    model = TPAUCModule(MLP(x.shape[1], (64, 64)), STACO(*rectangle))
    bare_trainer(max_epochs=-1, max_steps=1000).fit(model, data)
    with torch.no_grad():
        return model(torch.from_numpy(scaler.transform(test)).float()).numpy()


def boosting(x: Any, y: Any, test: Any, rectangle: tuple[float, float], seed: int) -> Any:  # noqa: ARG001
    return HistGradientBoostingClassifier(random_state=seed).fit(x, y).decision_function(test)


def logistic(x: Any, y: Any, test: Any, rectangle: tuple[float, float], seed: int) -> Any:  # noqa: ARG001
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(x, y).decision_function(test)


METHODS: dict[str, Scores] = {
    "TPAUCClassifier": classifier,
    "TPAUCModule": module,
    "HistGradientBoostingClassifier": boosting,
    "LogisticRegression": logistic,
}


def main(args: list[str] | None = None) -> None:
    options = arguments(__doc__, args)
    quiet()
    header("a fit of 10,000 x 30")
    x, y = make_classification(10_000, 30, weights=[0.9], flip_y=0.05, random_state=0)
    start = now()
    TPAUCClassifier(random_state=0).fit(x, y)
    print(f"{now() - start:.2g} s")
    for name, (train, test, columns) in FILES.items():
        (x, y), (x_test, y_test) = load(name, train, columns), load(name, test, columns)
        print(f"\n{name}: test TPAUC, median (lowest, highest) of seeds, and median seconds of a fit")
        for rectangle in RECTANGLES[: 1 if options.quick else None]:
            for method, scores in METHODS.items():
                areas, seconds = [], []
                for seed in range(1 if options.quick else 3):
                    start = now()
                    found = scores(x, y, x_test, rectangle, seed)
                    seconds.append(now() - start)
                    areas.append(float(two_way_partial_auroc(found, y_test, *rectangle)))
                low, middle, high = np.quantile(areas, [0, 0.5, 1])
                took = statistics.median(seconds)
                print(f"{rectangle} {method:32}{middle:.3f} ({low:.3f}, {high:.3f}){took:8.2g} s", flush=True)


if __name__ == "__main__":
    main()
