"""Runs a comparison: trains what is missing, chooses on validation data, and writes the report."""

import copy
import functools
import multiprocessing
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule
from torch import nn
from tqdm import tqdm

from lightning_tpauc.algorithms import Algorithm, CrossEntropy
from lightning_tpauc.comparison import training
from lightning_tpauc.comparison.report import Report, write_report
from lightning_tpauc.comparison.results import Outcome, Results, evaluate, have_both
from lightning_tpauc.comparison.training import BASELINES, Cell, Length, Method, Run, Setup
from lightning_tpauc.data import PosNegDataModule
from lightning_tpauc.data.examples import listed
from lightning_tpauc.data.parts import content_digest
from lightning_tpauc.errors import ArgumentError, DataError, UnsupportedError
from lightning_tpauc.extras import import_extra
from lightning_tpauc.functional.checks import check_count, check_rectangle
from lightning_tpauc.lightning_fixes.undisturbed import undisturbed
from lightning_tpauc.module import TPAUCModule
from lightning_tpauc.scoring.labels import Labels, labels_of_data
from lightning_tpauc.version import __version__

#: What a process of its own works on: inherited through the fork.
_train_one: Callable[[Cell], None]


def compare(
    model: nn.Module | Callable[..., Any],
    datamodule: LightningDataModule | Callable[..., LightningDataModule],
    folder: str | Path = "comparison",
    *,
    min_tpr: float = 0.5,
    max_fpr: float = 0.5,
    methods: Sequence[str | Method] | None = None,
    trials: int = 1,
    seeds: int = 3,
    folds: int | None = None,
    processes: int = 1,
    rectangles: Sequence[tuple[float, float]] = (),
    others: Mapping[str, Any] | None = None,
    module: Mapping[str, Any] | None = None,
    **trainer: Any,
) -> Report:
    """Train several methods on the same data, model, split and number of examples, and say which one is ahead.

    All start from the same weights and see the same number of examples. Each keeps the weights that validate best. Test
    data are used at the end only, with these weights. A comparison that was stopped goes on where it was if it is
    called again with the same folder; if data, model or settings have changed, it trains again. With several labels the
    mean over the labels decides, as ``val/tpauc`` does, and the report shows each label as well. Random numbers and the
    environment are left as they were.

    Args:
        model: a backbone, whose weights all methods start from; a function that makes one; or a subclass of
            :class:`~lightning_tpauc.TPAUCModule`, or ``functools.partial`` of one with its own arguments.
        datamodule: a data module; or a function that makes one, ``datamodule(seed=...)``, with ``folds``
            ``datamodule(seed=..., fold=..., num_folds=...)``.
        folder: where results go: ``report.html``, ``report.txt``, ``runs.csv``, pictures.
        min_tpr: lower bound of the true positive rate of the rectangle that is trained for.
        max_fpr: upper bound of its false positive rate.
        methods: names of :func:`~lightning_tpauc.comparison.method_names` or
            :class:`~lightning_tpauc.comparison.Method` objects; ``None``: cross-entropy, balanced cross-entropy,
            cross-entropy without the average of late weights, which the others but PAUCI have, STACO, and, for one
            label, PAUCI. They are compared with the cross-entropy that validates best.
        trials: number of learning rates to try for each method: its default, and others around it, half a power of ten
            apart. Validation data choose the best.
        seeds: number of repetitions with other initial weights and batches. With one, and no folds, the noise of
            training is unknown, and no method is called ahead. If ``model`` is a network, or loads trained weights,
            only the batches differ: pass a function that makes one.
        folds: number of folds of a cross-validation; each is a repetition.
        processes: how many trainings run side by side, each in a process and a thread of its own, on CPUs. The results
            equal those of one after the other, up to rounding that depends on the number of threads.
        rectangles: further (min_tpr, max_fpr) pairs to report.
        others: models from elsewhere for the table, by name, if the data have one label: classifiers of scikit-learn,
            which are fitted on the same training tables (``{"boosting": HistGradientBoostingClassifier()}``), or paths
            of CSV files with columns ``example_id``, the position in the test set, and ``score``. The report says
            whether STACO is ahead of them.
        module: arguments of the module for all methods, such as ``{"optimizer": ...}``, or ``{"tasks": ...}`` for data
            with several labels.
        **trainer: arguments of the Trainer; ``max_epochs`` or ``max_steps`` among them.

    Returns:
        The report; printing it shows the table and the verdicts.

    Raises:
        ArgumentError: if an argument is out of range.
        DataError: if there is no validation set.
        UnsupportedError: if one of ``methods`` trains one label, and the data have several.
        MissingExtraError: if matplotlib is not installed.

    Example:
        >>> import tempfile, torch
        >>> from lightning_tpauc import DigitsDataModule
        >>> data = DigitsDataModule(positive_digit=8, val_fraction=0.25)
        >>> report = compare(
        ...     torch.nn.Linear(64, 1), data, tempfile.mkdtemp(), methods=["cross-entropy", "STACO"], max_steps=4,
        ...     accelerator="cpu",
        ... )
        >>> sorted(report.verdicts)
        ['STACO']
    """
    if isinstance(model, TPAUCModule):
        raise ArgumentError(f"Pass `model` as `partial({type(model).__name__}, ...)`, not as an object.")
    if folds is not None and isinstance(datamodule, LightningDataModule):
        raise ArgumentError(
            "`folds` needs a data module for each: pass `datamodule=lambda seed, fold, num_folds: ...`."
        )
    options = dict(module or {})
    given = copy.copy(datamodule)  # seeds are set on it
    make_data = functools.partial(_datamodule, given, getattr(given, "seed", None), folds)
    setup = Setup(functools.partial(_module, model, options), make_data, trainer, options)
    further: dict[str, Any] = {"methods": methods, "rectangles": rectangles, "others": others or {}}
    counts: dict[str, Any] = {"trials": trials, "seeds": seeds, "folds": folds, "processes": processes}
    return Comparison(setup, folder, (min_tpr, max_fpr), **further, **counts).run()


def _module(model: Any, given: Mapping[str, Any], algorithm: Algorithm, options: Mapping[str, Any]) -> Any:
    own, made = {**given, **options}, model.func if isinstance(model, functools.partial) else model
    if isinstance(made, type) and issubclass(made, TPAUCModule):
        return copy.deepcopy(model)(algorithm=algorithm, **own)
    # copied: a function may return the same network again
    return TPAUCModule(copy.deepcopy(model if isinstance(model, nn.Module) else model()), algorithm, **own)


def _datamodule(given: Any, seed: int | None, folds: int | None, run: Run) -> Any:
    if callable(given):
        return given(seed=run.seed, **({} if folds is None else {"fold": run.fold, "num_folds": folds}))
    if seed is not None:
        given.seed = seed + run.seed
    return given


@dataclass
class Comparison:
    """Methods x learning rates x runs on one problem. A run in the same folder goes on where an earlier one stopped.

    :func:`compare` makes one of Python objects, ``lightning-tpauc compare`` one of a configuration.

    Args:
        setup: makes modules, data and Trainers.
        folder: where results are written; finished trainings lie in its folder ``cells``.
        rectangle: the (min_tpr, max_fpr) that methods train for.
        methods: names or :class:`Method` objects; see :func:`compare`, also for the other arguments.
        trials: learning rates per method.
        seeds: number of seeds.
        folds: number of folds, or ``None``.
        rectangles: further (min_tpr, max_fpr) pairs to report.
        first_seed: the first seed; the others follow it.
        processes: how many trainings run side by side.
        others: models from elsewhere, by name.

    Raises:
        ArgumentError: if an argument is out of range.

    Example:
        >>> comparison = Comparison(Setup(None, None, {"max_steps": 5}), "somewhere", (0.5, 0.5), trials=3)
        >>> comparison.factors
        [1.0, 3.1622776601683795, 0.31622776601683794]
    """

    setup: Setup
    folder: str | Path
    rectangle: tuple[float, float]
    methods: Sequence[str | Method] | None = None
    trials: int = 1
    seeds: int = 3
    folds: int | None = None
    rectangles: Sequence[tuple[float, float]] = ()
    first_seed: int = 0
    processes: int = 1
    others: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("trials", "seeds", "processes"):
            check_count(getattr(self, name), name, 1)
        if self.folds is not None:
            check_count(self.folds, "folds", 2)
        if all(self.setup.options.get(name) in (None, -1) for name in ("max_epochs", "max_steps")):
            raise ArgumentError("All methods train for the same length: pass `max_epochs` or `max_steps`.")
        self._folder = Path(self.folder)
        self._methods = training.chosen_methods(self.methods)
        training.check_others(self.others, [method.name for method in self._methods])
        #: Of the default learning rate: half a power of ten apart, the default itself first.
        self.factors = [10.0 ** ((k + 1) // 2 / (2 if k % 2 else -2)) for k in range(self.trials)]
        self._rectangles = list(dict.fromkeys(check_rectangle(*r) for r in (self.rectangle, *self.rectangles)))
        folds: Sequence[int | None] = [None] if self.folds is None else range(self.folds)
        self.runs = [Run(self.first_seed + k, fold) for k in range(self.seeds) for fold in folds]
        self._labels: Labels | None = None  # of data with several
        self._has_test = True
        self._lengths: dict[str, Length] = {}
        self._identities: dict[Run, str] = {}
        self._notes: list[str] = []

    def run(self) -> Report:
        """Train what is missing, choose, and write the report.

        Raises:
            DataError: if there is no validation set.
            MissingExtraError: if matplotlib is not installed.
        """
        import_extra("matplotlib.figure", "plot")  # found out now, not when everything is trained
        with undisturbed():
            self._prepare()
            cells = [self._cell(m, factor, run) for run in self.runs for m in self._methods for factor in self.factors]
            missing = [cell for cell in cells if not training.cell_path(self._folder, cell).is_file()]
            if missing:
                done = len(cells) - len(missing)
                for _ in tqdm(self._train(missing), "training", len(cells), initial=done, smoothing=0):
                    pass
            results = self._results()  # which adds a note
            notes = [*self._notes, *self.setup.notes()]
            return write_report(results, self._folder, self._repetitions(), self.trials, notes)

    # ---------------------------------------------------------------- what is to be done

    def _prepare(self) -> None:
        """Look at the data and the initial weights of each run."""
        starts = set()
        for run in self.runs:
            datamodule: Any = self.setup.datamodule(run)
            if not isinstance(datamodule, PosNegDataModule):
                raise ArgumentError(f"Expected `datamodule` to be a PosNegDataModule, but got {datamodule!r}.")
            datamodule.prepare_data()
            datamodule.setup("fit")
            module = self.setup.build(self._methods[0], self._rectangles[0], run)
            self._labels = labels_of_data(datamodule, module.label_settings)
            _require_both_classes(datamodule.val_dataloader(), "validation")
            self._has_test = _has_test(datamodule) and self._has_test
            if not self._lengths:
                self._measure(datamodule)
            starts.add(content_digest(dict(module.state_dict())))
            if run == self.runs[0]:
                self._notes.append(self._about(datamodule, module))
            self._identities[run] = self.setup.identity(module, datamodule, repr((self._rectangles[0], self._labels)))
        if self.seeds > 1 and len(starts) == 1:
            self._notes.append("All seeds start from the same weights: they differ by their batches alone.")

    def _about(self, datamodule: PosNegDataModule, module: TPAUCModule) -> str:
        """What was compared, on what and when."""
        data = f"{type(datamodule).__name__} {datamodule.fingerprint}, training positives {datamodule.num_positives}"
        weights = sum(parameter.numel() for parameter in module.parameters())
        model = f"{type(getattr(module, 'backbone', module)).__name__}, {weights:,} weights"
        given = {name: value for name, value in self.setup.options.items() if isinstance(value, (int, float, str))}
        trainer = ", ".join(f"{name}={value}" for name, value in given.items())
        versions = f"lightning-tpauc {__version__}, torch {torch.__version__}, lightning {lightning.__version__}"
        return f"{data}; {model}; Trainer({trainer}); {time.strftime('%Y-%m-%d')}, {versions}."

    def _measure(self, datamodule: PosNegDataModule) -> None:
        """Choose the methods that can train these labels, and how long each trains."""
        algorithms = {method.name: method.algorithm(*self._rectangles[0]) for method in self._methods}
        left_out = [name for name, own in algorithms.items() if self._labels is not None and not own.takes_tasks]
        if left_out and self.methods:
            refused = f"{listed(left_out)} of `methods` can train one label only, but the data have several"
            raise UnsupportedError(f"{refused}: take others, or pass one column of labels.")
        if left_out:
            self._notes.append(f"Without {listed(left_out)}, for one label only.")
        self._methods = [method for method in self._methods if method.name not in left_out]
        trainer = self.setup.trainer()
        usual = sum(datamodule.batch_sampler().global_sizes(1)[:2])
        for method in self._methods:
            per_step = training.examples_per_step(datamodule, algorithms[method.name])
            self._lengths[method.name] = training.length_of(trainer, datamodule.steps_per_epoch, usual, per_step)

    def _cell(self, method: Method, factor: float, run: Run) -> Cell:
        algorithm = method.algorithm(*self._rectangles[0])
        own = [algorithm, repr(algorithm), method.options, self._lengths[method.name], self._has_test]
        return Cell(method.name, factor, run, content_digest(self._identities[run], training.description(own)))

    # ---------------------------------------------------------------- doing it

    def _train(self, cells: Sequence[Cell]) -> Iterable[None]:
        """Train one after the other, or side by side in forks of this process, each in one thread."""
        if self.processes == 1:
            yield from map(self._train_cell, cells)
            return
        global _train_one
        _train_one, fork = self._train_cell, multiprocessing.get_context("fork")
        # the parent's pool of threads does not survive the fork
        with ProcessPoolExecutor(min(self.processes, len(cells)), fork, torch.set_num_threads, (1,)) as pool:
            yield from pool.map(_train, cells)

    def _train_cell(self, cell: Cell) -> None:
        method = next(method for method in self._methods if method.name == cell.method)
        common = cell, self._rectangles[0], self._lengths[cell.method]
        training.save_cell(self._folder, cell, training.train_cell(self.setup, method, *common, test=self._has_test))

    # ---------------------------------------------------------------- what came out

    def _results(self) -> Results:
        runs, failed = {}, {}
        for method in self._methods:
            tried = {
                factor: [training.load_cell(self._folder, self._cell(method, factor, run)) for run in self.runs]
                for factor in self.factors
            }
            best = best_factor(tried)
            if best is not None:
                runs[method.name] = tried[best]
            else:
                failed[method.name] = next(run.failed for outcomes in tried.values() for run in outcomes if run.failed)
        first = self._rectangles[0]
        labels = [("", first)]
        if self._labels is not None:
            labels = list(zip(self._labels.names, self._labels.rectangles(CrossEntropy(*first)), strict=True))
        names = [method.name for method in self._methods]
        known = [name for name in BASELINES if name in runs]
        baseline = max(known, key=lambda name: validated(runs[name]), default=names[0])
        if len(known) > 1:
            self._notes.append(f"The baseline, {baseline}, validates best of {listed(known)}.")
        for name, other in self.others.items():
            datamodules = ((self.setup.datamodule(run), run.seed) for run in self.runs)
            runs[name] = [training.outcome_of(other, *own, test=self._has_test) for own in datamodules]
        results = evaluate(runs, baseline, self._rectangles, labels, self.folds or 1, list(self.others))
        return replace(results, part="test" if self._has_test else "validation", failed=failed)

    def _repetitions(self) -> str:
        seeds = "one seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return seeds if self.folds is None else f"{self.folds} folds" + f" and {seeds}" * (self.seeds > 1)


def best_factor(outcomes: Mapping[float, Sequence[Outcome]]) -> float | None:
    """The learning rate with the best mean areas on validation data, the first of equals; ``None`` if all failed."""
    means = {factor: validated(runs) for factor, runs in outcomes.items() if not any(run.failed for run in runs)}
    return max(means, key=means.__getitem__, default=None)


def validated(runs: Sequence[Outcome]) -> list[float]:
    """Means of TPAUC and AUROC on validation data."""
    return torch.tensor([run.validation for run in runs], dtype=torch.float64).mean(0).tolist()


# ---------------------------------------------------------------- what a comparison asks of data


def _require_both_classes(loader: Any, name: str) -> None:
    if isinstance(loader, list) and not loader:
        raise DataError("Validation data choose, but there are none: pass `val_dataset`, `val_fraction` or `folds`.")
    targets = getattr(loader, "targets", None)  # a loader of one's own does not say what its labels are
    if targets is not None and not have_both(torch.as_tensor(targets)).any():
        raise DataError(f"Areas need both classes, but the {name} set has examples of one class alone.")


def _has_test(datamodule: PosNegDataModule) -> bool:
    datamodule.setup("test")
    try:
        loader = datamodule.test_dataloader()
    except (DataError, MisconfigurationException):
        return False
    _require_both_classes(loader, "test")
    return True


# ---------------------------------------------------------------- processes


def _train(cell: Cell) -> None:
    _train_one(cell)
