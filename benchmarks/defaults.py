"""Do the defaults win untuned? One set of them on every data set, model and rectangle, against tuned baselines.

STACO runs with its defaults; nothing is set but the rectangle, and for the rows "rate x 1/3", "rate x 3", and so on,
what these say. Cross-entropy and class-balanced cross-entropy, each as it is and with the average of its weights that
STACO takes, run at five learning rates of Adam, and at three of STACO's optimizer; PAUCI and SOTA-s run with their
defaults and at three rates of Adam. A baseline's row is its rate with the best mean validation value. All methods see
the same number of examples of the same folds and start from the same weights. Every value is that of the best
validation, as `StageCallback(keep_best=True)` leaves it; test values choose nothing. Cross-entropy knows nothing of the
rectangle: one training is judged at all of them.

Each cell is written to a file once it is trained, so that a run that is killed goes on where it was. Smaller parts:

    python -m benchmarks.defaults --sets ijcnn1-mlp,adult-linear --seeds 3 --file defaults.jsonl
    python -m benchmarks.defaults --only-table 1 --file defaults.jsonl
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from scipy import stats
from sklearn.datasets import load_svmlight_file
from sklearn.preprocessing import StandardScaler
from torch import nn

from benchmarks.common import arguments, data_folder, quiet
from lightning_tpauc import (
    DampedAdam,
    DigitsDataModule,
    LIBSVMDataModule,
    MedMNISTDataModule,
    PosNegDataModule,
    SMILESDataModule,
    StageCallback,
    TPAUCModule,
)
from lightning_tpauc.algorithms import PAUCI, STACO, Algorithm, CrossEntropy, SOTAs
from lightning_tpauc.functional import two_way_partial_auroc
from lightning_tpauc.models import CNN3D, GIN

Rectangle = tuple[float, float]
CORNERS: tuple[Rectangle, ...] = ((0.5, 0.5), (0.75, 0.75), (0.8, 0.2))
NOISY: tuple[Rectangle, ...] = ((0.5, 0.5), (0.7, 0.3))


class Problem(NamedTuple):
    """A data set with a model.

    Attributes:
        data: makes the data module of a fold, given its number and the batch sizes.
        model: makes the network.
        rectangles: what is asked for.
        steps: length of a training.
        sizes: of a batch; the data module's defaults if empty.
    """

    data: Callable[..., PosNegDataModule]
    model: Callable[[], nn.Module]
    rectangles: tuple[Rectangle, ...]
    steps: int
    sizes: Mapping[str, int] = MappingProxyType({})


def mlp(width: int) -> nn.Module:
    """Two hidden layers of 64."""
    return nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))


def libsvm(name: str, train: str, test: str, **options: Any) -> Callable[..., PosNegDataModule]:
    """A table from the folder of data sets, in five folds."""
    cache = Path(tempfile.gettempdir()) / "lightning_tpauc_defaults"

    def make(fold: int, **sizes: Any) -> PosNegDataModule:
        root = str(data_folder() / name)
        return LIBSVMDataModule(root, train, test, num_folds=5, fold=fold, cache_dir=str(cache), **options, **sizes)

    return make


def tox21(fold: int, **sizes: Any) -> PosNegDataModule:
    """Tox21, NR-AR, in five folds."""
    cache = Path(tempfile.gettempdir()) / "lightning_tpauc_defaults"
    sizes = {"root": str(data_folder() / "tox21"), "cache_dir": str(cache), "num_folds": 5, "fold": fold, **sizes}
    return SMILESDataModule(file="tox21.csv.gz", target_column="NR-AR", train_with_val=True, **sizes)


def adrenal(fold: int, **sizes: Any) -> PosNegDataModule:
    """AdrenalMNIST3D in its given parts; the fold seeds the batches."""
    return MedMNISTDataModule("adrenalmnist3d", str(data_folder() / "medmnist"), seed=fold, batch_size=64, **sizes)


def digits(fold: int, **sizes: Any) -> PosNegDataModule:
    """The digit 8 of scikit-learn's digits."""
    return DigitsDataModule(positive_digit=8, val_fraction=0.25, split_seed=fold, **sizes)


@cache
def adult_files() -> tuple[Any, ...]:
    """Features and labels of adult's training and test file, parsed once for all trainings."""
    folder = data_folder() / "adult"
    return tuple(load_svmlight_file(str(folder / name), n_features=123, zero_based=True) for name in ADULT_FILES)


def few_positives(fold: int, **sizes: Any) -> PosNegDataModule:
    """160 positives and 4,000 negatives of adult to train on, 123 inputs; another third of them to validate on.

    The test set is adult's own, whole.
    """
    train, test = adult_files()
    rng = np.random.default_rng(fold)
    rows = np.concatenate(
        [rng.permutation(np.flatnonzero(sign * train[1] > 0))[:n] for sign, n in ((1, 213), (-1, 5333))]
    )
    scaler = StandardScaler().fit(train[0][rows].toarray())
    parts = [
        (scaler.transform(x.toarray()).astype(np.float32), y > 0) for x, y in ((train[0][rows], train[1][rows]), test)
    ]
    return PosNegDataModule(parts[0], test_dataset=parts[1], val_fraction=0.25, split_seed=fold, seed=fold, **sizes)


ADULT_FILES = ("adult.trn.bz2", "adult.tst.bz2")
IJCNN1 = libsvm("ijcnn1", "ijcnn1.bz2", "ijcnn1.t.bz2")
ADULT = libsvm("adult", *ADULT_FILES)
PROBLEMS = {
    "ijcnn1-linear": Problem(IJCNN1, lambda: nn.Linear(22, 1), CORNERS, 1000),
    "ijcnn1-mlp": Problem(IJCNN1, lambda: mlp(22), CORNERS, 1000),
    "adult-linear": Problem(ADULT, lambda: nn.Linear(123, 1), NOISY, 1000),
    "adult-mlp": Problem(ADULT, lambda: mlp(123), NOISY, 1000),
    "few-linear": Problem(few_positives, lambda: nn.Linear(123, 1), ((0.5, 0.5),), 1000),
    "few-mlp": Problem(few_positives, lambda: mlp(123), ((0.5, 0.5),), 1000),
    "digits-mlp": Problem(digits, lambda: mlp(64), ((0.8, 0.2),), 500),
    "tox21-gin": Problem(tox21, GIN, ((0.5, 0.5),), 400, {"num_pos": 32, "num_neg": 96}),
    "adrenal-cnn3d": Problem(adrenal, CNN3D, ((0.5, 0.5),), 200, {"num_pos": 32, "num_neg": 96}),
}


class Row(NamedTuple):
    """A method with settings, as the table names it.

    Attributes:
        name: of the row.
        algorithm: makes the algorithm of a rectangle.
        rates: learning rates; the best of them, by validation, is shown. ``None``: the module's default.
        module: further arguments of the module.
        stages: arguments of :class:`StageCallback`.
        every_rectangle: one training is judged at every rectangle.
        steps: length of a training; the problem's if 0.
        after_cross_entropy: whether the weights it starts from are those of a cross-entropy training with the defaults.
        optimizer: that has the rates.
    """

    name: str
    algorithm: Callable[[Rectangle], Algorithm]
    rates: tuple[float | None, ...] = (None,)
    module: Mapping[str, Any] = MappingProxyType({})
    stages: Mapping[str, Any] = MappingProxyType({})
    every_rectangle: bool = False
    steps: int = 0
    after_cross_entropy: bool = False
    optimizer: Callable[..., torch.optim.Optimizer] = DampedAdam


#: Cross-entropy as it is used, without the average of its weights.
PlainCrossEntropy = partial(CrossEntropy, average=False)


FIVE = (0.0003, 0.001, 0.003, 0.01, 0.03)


def baseline(
    name: str, algorithm: Callable[[Rectangle], Algorithm], rates: tuple[float, ...] = FIVE, **other: Any
) -> Row:
    """Tuned cross-entropy: one training is judged at every rectangle."""
    return Row(name, algorithm, rates, every_rectangle=True, **{"optimizer": torch.optim.Adam, **other})


SIGMOID = {"score_activation": "sigmoid"}
MAIN = (
    Row("STACO", lambda r: STACO(*r)),
    baseline("cross-entropy", lambda r: PlainCrossEntropy(*r)),
    baseline("cross-entropy, averaged", lambda r: CrossEntropy(*r)),
    baseline("balanced cross-entropy", lambda r: PlainCrossEntropy(*r, balanced=True)),
    baseline("balanced cross-entropy, averaged", lambda r: CrossEntropy(*r, balanced=True)),
)
DAMPED = tuple(
    baseline(f"{name}, DampedAdam", make, (0.003, 0.01, 0.03), optimizer=DampedAdam)
    for name, make in (
        ("cross-entropy", lambda r: PlainCrossEntropy(*r)),
        ("balanced cross-entropy", lambda r: PlainCrossEntropy(*r, balanced=True)),
    )
)
TRACKED = (Row("STACO, tracked duals", lambda r: STACO(*r, duals="tracked")),)
COMPARED = (
    Row("PAUCI", lambda r: PAUCI(*r), (None,), SIGMOID),
    Row("PAUCI, tuned", lambda r: PAUCI(*r), (0.001, 0.003, 0.01), SIGMOID, optimizer=torch.optim.Adam),
    Row("SOTA-s", lambda r: SOTAs(*r), (None,)),
    Row("SOTA-s, tuned", lambda r: SOTAs(*r), (0.001, 0.003, 0.01), optimizer=torch.optim.Adam),
)
LONGER = (
    baseline("cross-entropy, 3000 steps", lambda r: PlainCrossEntropy(*r), steps=3000),
    baseline("balanced cross-entropy, 3000 steps", lambda r: PlainCrossEntropy(*r, balanced=True), steps=3000),
)
SPREAD = (
    Row("STACO, rate x 1/3", lambda r: STACO(*r), (0.0033,)),
    Row("STACO, rate x 3", lambda r: STACO(*r), (0.03,)),
    Row("STACO, steps x 1/3", lambda r: STACO(*r, alpha=1 / 3, beta=1 / 3, beta_prime=1 / 3)),
    Row("STACO, steps x 3", lambda r: STACO(*r, alpha=3.0, beta=3.0, beta_prime=3.0)),
    Row("STACO, sigmoid", lambda r: STACO(*r), (None,), SIGMOID),
    Row("STACO, squared hinge", lambda r: STACO(*r, surrogate="squared_hinge")),
    Row("STACO, logistic", lambda r: STACO(*r, surrogate="logistic")),
    Row("STACO, ramp", lambda r: STACO(*r, surrogate="ramp")),
    Row("STACO, smooth ramp", lambda r: STACO(*r, surrogate="smooth_ramp")),
)
TRACKED_SPREAD = (
    Row("tracked, rate x 1/3", lambda r: STACO(*r, duals="tracked"), (0.0033,)),
    Row("tracked, rate x 3", lambda r: STACO(*r, duals="tracked"), (0.03,)),
    Row("tracked, sigmoid", lambda r: STACO(*r, duals="tracked"), (None,), SIGMOID),
    Row("tracked, squared hinge", lambda r: STACO(*r, duals="tracked", surrogate="squared_hinge")),
    Row("tracked, logistic", lambda r: STACO(*r, duals="tracked", surrogate="logistic")),
    Row("tracked, ramp", lambda r: STACO(*r, duals="tracked", surrogate="ramp")),
    Row("tracked, smooth ramp", lambda r: STACO(*r, duals="tracked", surrogate="smooth_ramp")),
)
ABLATION = (
    Row("STACO, Adam", lambda r: STACO(*r), (0.01,), optimizer=torch.optim.Adam),
    Row("STACO, fixed rectangle", lambda r: STACO(*r), (None,), {}, {"shrink_rectangle": False}),
    Row("STACO, no warm-up", lambda r: STACO(*r), (None,), {"warmup": 0.0}),
    Row("STACO, mean of all iterates", lambda r: STACO(*r), (None,), {}, {"averaging": "uniform"}),
    Row("STACO, two batches of negatives", lambda r: STACO(*r, share_negatives=False)),
    Row("STACO2, gamma 500", lambda r: STACO(*r, gamma=500.0)),
    Row("STACO, absolute steps", lambda r: STACO(*r, step_units="absolute")),
    Row(
        "STACO, absolute steps of 0.1", lambda r: STACO(*r, step_units="absolute", alpha=0.1, beta=0.1, beta_prime=0.1)
    ),
)
START = (
    Row("STACO after cross-entropy", lambda r: STACO(*r), after_cross_entropy=True),
    Row("tracked after cross-entropy", lambda r: STACO(*r, duals="tracked"), after_cross_entropy=True),
    Row("STACO at 0.001 after cross-entropy", lambda r: STACO(*r), (0.001,), after_cross_entropy=True),
)
DEEP = (
    Row("STACO", lambda r: STACO(*r)),
    baseline("cross-entropy", lambda r: PlainCrossEntropy(*r), FIVE[:3]),
    baseline("balanced cross-entropy", lambda r: PlainCrossEntropy(*r, balanced=True), FIVE[:3]),
    Row("PAUCI", lambda r: PAUCI(*r), (0.001,), SIGMOID),
)
PARTS = {
    "main": MAIN,
    "tracked": TRACKED,
    "damped": DAMPED,
    "compared": COMPARED,
    "longer": LONGER,
    "deep": DEEP,
    "spread": SPREAD,
    "tracked_spread": TRACKED_SPREAD,
    "ablation": ABLATION,
    "start": START,
}


class Cell(NamedTuple):
    """One training."""

    problem: str
    rectangle: Rectangle
    row: str
    rate: float | None
    seed: int

    @property
    def key(self) -> str:
        """Its name in the file."""
        return f"{self.problem} {self.rectangle} {self.row} {self.rate} {self.seed}"


class Validated(Callback):
    """The best validation of each rectangle, and the test TPAUC of its weights.

    Args:
        rectangles: at which the model is judged; the first is the algorithm's.
        datamodule: whose validation and test examples.
    """

    def __init__(self, rectangles: tuple[Rectangle, ...], datamodule: PosNegDataModule) -> None:
        self.rectangles, self.datamodule = rectangles, datamodule
        self.best: dict[Rectangle, tuple[float, float, float]] = {}
        self.last: dict[Rectangle, float] = {}

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep ``(val/tpauc, val/auroc, test TPAUC)`` where they are the best; test scores are not looked at else."""
        module: Any = pl_module
        logged = trainer.callback_metrics
        scores = scored(module, self.datamodule.val_dataloader()) if len(self.rectangles) > 1 else None
        better = []
        for rectangle in self.rectangles:
            area = float(logged["val/tpauc"] if scores is None else two_way_partial_auroc(*scores, *rectangle))
            self.last[rectangle] = area
            areas = area, float(logged["val/auroc"])
            if not math.isnan(area) and areas > self.best.get(rectangle, (-1.0,))[:2]:
                better.append((rectangle, areas))
        if better:
            scores = scored(module, self.datamodule.test_dataloader())
            for rectangle, areas in better:
                self.best[rectangle] = (*areas, float(two_way_partial_auroc(*scores, *rectangle)))


def scored(module: Any, batches: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and labels of all examples."""
    return scored_by(module.raw_scores, batches)


@torch.no_grad()
def scored_by(model: Callable[[Any], torch.Tensor], batches: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and labels of all examples, by any function of a batch's inputs."""
    pairs = [(model(batch.inputs).reshape(-1), batch.target) for batch in batches]
    return torch.cat([score for score, _ in pairs]), torch.cat([label for _, label in pairs])


def train(cell: Cell, row: Row, rectangles: tuple[Rectangle, ...]) -> dict[Rectangle, dict[str, Any]]:
    """Train a cell; validation and test TPAUC of the best validation, the last validation's, and seconds."""
    problem = PROBLEMS[cell.problem]
    seed_everything(1000 + cell.seed, verbose=False)
    datamodule = problem.data(cell.seed, **problem.sizes)
    datamodule.prepare_data()
    datamodule.setup("fit")
    datamodule.setup("test")
    optimizer = None if cell.rate is None else partial(row.optimizer, lr=cell.rate)
    network = problem.model()
    before = {}
    if row.after_cross_entropy:
        network.load_state_dict(cross_entropy_weights(cell.problem, cell.seed))
        scores = scored_by(network.eval(), datamodule.val_dataloader())
        before["start"] = float(two_way_partial_auroc(*scores, *cell.rectangle))
    module = TPAUCModule(network, row.algorithm(cell.rectangle), optimizer, **row.module)
    best = Validated(rectangles, datamodule)
    trainer = make_trainer(row.steps or problem.steps, StageCallback(**row.stages), best)
    start = time.perf_counter()
    try:
        trainer.fit(module, datamodule)
    except Exception as error:  # a cell that diverges is a result
        failed = {"val": 0.0, "test": 0.0, "last": 0.0, "failed": 1.0, "error": str(error)[:200]}
        return dict.fromkeys(rectangles, failed)
    seconds = time.perf_counter() - start
    return {
        rectangle: {
            "val": best.best.get(rectangle, (0.0, 0.0, 0.0))[0],
            "test": best.best.get(rectangle, (0.0, 0.0, 0.0))[2],
            "last": best.last[rectangle],
            "tightness": module.algorithm.tightness,
            "seconds": seconds,
            **before,
        }
        for rectangle in rectangles
    }


def make_trainer(steps: int, *callbacks: Callback) -> Trainer:
    """A silent Trainer of so many steps."""
    return Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=list(callbacks),
    )


@cache
def cross_entropy_weights(problem: str, seed: int) -> dict[str, torch.Tensor]:
    """Weights that cross-entropy with the defaults leaves; its best validation counts at (0.5, 0.5)."""
    datamodule = PROBLEMS[problem].data(seed, **PROBLEMS[problem].sizes)
    module = TPAUCModule(PROBLEMS[problem].model(), PlainCrossEntropy())
    make_trainer(PROBLEMS[problem].steps, StageCallback()).fit(module, datamodule)
    return {name: weight.detach().clone() for name, weight in module.backbone.state_dict().items()}


def cells(problems: list[str], parts: list[str], seeds: int) -> Iterator[tuple[Cell, Row]]:
    """Every training of the study, seed by seed."""
    for seed in range(seeds):
        for name in problems:
            for part in parts:
                for row in PARTS[part]:
                    for rectangle in PROBLEMS[name].rectangles:
                        for rate in row.rates:
                            yield Cell(name, rectangle, row.name, rate, seed), row


def table(results: dict[str, dict[str, Any]], found: list[Cell]) -> None:
    """Means over seeds of validation and test, each row at its best rate, and the difference to the best baseline."""
    by_setting: dict[tuple[str, Rectangle, str], dict[float | None, list[dict[str, Any]]]] = defaultdict(dict)
    for cell in found:
        by_setting[cell.problem, cell.rectangle, cell.row].setdefault(cell.rate, []).append(results[cell.key])
    print("| problem | rectangle | method | rate | validation | test | last validation | seeds |")
    print("|---|---|---|---|---|---|---|---|")
    for (problem, rectangle, row), rates in sorted(by_setting.items(), key=lambda item: (item[0][0], item[0][1])):
        rate = max(rates, key=lambda rate: mean(rates[rate], "val"))
        seeds = rates[rate]
        columns = [f"{mean(seeds, name):.3f} ({spread(seeds, name):.3f})" for name in ("val", "test", "last")]
        shown = "default" if rate is None else f"{rate:g}"
        print(f"| {problem} | {rectangle} | {row} | {shown} | {' | '.join(columns)} | {len(seeds)} |")


BASELINES = (
    ("cross-entropy", "balanced cross-entropy"),
    ("cross-entropy, averaged", "balanced cross-entropy, averaged"),
    ("cross-entropy, DampedAdam", "balanced cross-entropy, DampedAdam"),
)


def differences(results: dict[str, dict[str, Any]], found: list[Cell]) -> None:
    """STACO's value less that of the better baseline at its best rate, seed by seed, with the t interval of the mean.

    Which baseline and which rate is decided by the mean validation value, never by the test's.
    """
    by_setting: dict[tuple[str, Rectangle], dict[tuple[str, float | None], dict[int, Any]]] = defaultdict(dict)
    for cell in found:
        by_setting[cell.problem, cell.rectangle].setdefault((cell.row, cell.rate), {})[cell.seed] = results[cell.key]
    print("\n| problem | rectangle | against the better of | rate | validation | test | seeds |")
    print("|---|---|---|---|---|---|---|")
    for (problem, rectangle), settings in sorted(by_setting.items()):
        ours = settings.get(("STACO", None), {})
        for names in BASELINES:
            whole = [key for key in settings if key[0] in names and ours.keys() <= settings[key].keys()]
            if not ours or not whole:
                continue
            row, rate = max(whole, key=lambda key: mean([settings[key][seed] for seed in ours], "val"))
            theirs = settings[row, rate]
            columns = [interval([ours[seed][name] - theirs[seed][name] for seed in ours]) for name in ("val", "test")]
            print(f"| {problem} | {rectangle} | {row} | {rate:g} | {' | '.join(columns)} | {len(ours)} |")


def interval(values: list[float]) -> str:
    """Mean of paired differences with its 95% interval by Student's t."""
    middle = statistics.mean(values)
    if len(values) < 2:
        return f"{middle:+.3f}"
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{middle:+.3f} ({middle - half:+.3f} to {middle + half:+.3f})"


def mean(results: list[dict[str, Any]], name: str) -> float:
    """Mean over seeds."""
    return float(statistics.mean(result[name] for result in results))


def spread(results: list[dict[str, Any]], name: str) -> float:
    """Standard deviation over seeds; 0 of one."""
    return statistics.stdev(result[name] for result in results) if len(results) > 1 else 0.0


def main(args: list[str] | None = None) -> None:
    """Train what the file lacks, then print the table of what it has."""
    own = arguments(__doc__, args, sets=",".join(PROBLEMS), parts="main", seeds=5, file="defaults.jsonl", only_table=0)
    quiet()
    path = Path(own.file)
    lines = path.read_text().splitlines() if path.is_file() else []
    results = {entry["key"]: entry for entry in map(json.loads, lines)}
    problems, parts = own.sets.split(","), own.parts.split(",")
    if own.quick:
        problems, own.seeds = ["digits-mlp"], 1
    found = []
    for cell, row in cells(problems, parts, own.seeds):
        if cell.key not in results and not own.only_table:
            rectangles = PROBLEMS[cell.problem].rectangles if row.every_rectangle else (cell.rectangle,)
            trained = train(cell, row, rectangles)
            with path.open("a") as file:
                for rectangle, result in trained.items():
                    key = cell._replace(rectangle=rectangle).key
                    results[key] = {"key": key, **result}
                    file.write(json.dumps(results[key]) + "\n")
        if cell.key in results:
            found.append(cell)
    table(results, found)
    differences(results, found)


if __name__ == "__main__":
    main()
