"""Runs a comparison: trains what is missing, chooses on validation data, tests at the end, writes the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule
from torch import nn

from lightning_tpauc.algorithms import CrossEntropy
from lightning_tpauc.comparison.notes import left_out_methods, notes_of, title_of, unvalidated
from lightning_tpauc.comparison.parts import has_test, require_validation
from lightning_tpauc.comparison.plan import (
    BASELINE,
    Budget,
    Cell,
    Method,
    Outcome,
    Run,
    as_budget,
    best_factor,
    chosen_methods,
    examples_per_step,
    methods_for,
    rate_factors,
)
from lightning_tpauc.comparison.report import Report, write_report
from lightning_tpauc.comparison.resampling import Evaluated
from lightning_tpauc.comparison.results import Results, Row, evaluate
from lightning_tpauc.comparison.running import check_processes, missing_cells, progress_bar, run_side_by_side
from lightning_tpauc.comparison.setup import ObjectSetup, Setup, shown, weights_digest
from lightning_tpauc.comparison.store import Store
from lightning_tpauc.comparison.training import alone, build_module, quiet, score_test_set, train_cell
from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.extras import import_extra
from lightning_tpauc.functional.checks import check_count, check_rectangle
from lightning_tpauc.scoring.labelled_data import labels_of_data
from lightning_tpauc.scoring.labels import Labels, listed

_BAR = "{desc}{percentage:3.0f}%|{bar}| {n:.1f} of {total}, {elapsed} gone, {remaining} left"


def compare(
    model: nn.Module | Callable[..., Any],
    datamodule: LightningDataModule | Callable[..., LightningDataModule],
    folder: str | Path = "comparison",
    *,
    min_tpr: float = 0.5,
    max_fpr: float = 0.5,
    methods: Sequence[str | Method] | None = None,
    trials: int = 1,
    seeds: int = 1,
    folds: int | None = None,
    processes: int = 1,
    rectangles: Sequence[tuple[float, float]] = (),
    module: Mapping[str, Any] | None = None,
    **trainer: Any,
) -> Report:
    """Train several methods on the same data, model, split and number of examples, and say which one is ahead.

    All start from the same weights and see the same number of examples. Each keeps the weights that validate best. Test
    data are used at the end only, with these weights. A comparison that was stopped goes on where it was when it is
    called again with the same folder. For data with several labels all this is by the mean over the labels, as
    ``val/tpauc`` is, and the report shows each label as well.

    Args:
        model: a backbone, whose weights all methods start from; a function that makes one; or a subclass of
            :class:`~lightning_tpauc.TPAUCModule`, or ``functools.partial`` of one with its own arguments.
        datamodule: a data module; or a function that makes one, ``datamodule(seed=...)``, with ``folds``
            ``datamodule(seed=..., fold=..., num_folds=...)``.
        folder: where results go: ``report.html``, ``report.txt``, tables as CSV, pictures.
        min_tpr: lower bound of the true positive rate of the rectangle that is trained for.
        max_fpr: upper bound of its false positive rate.
        methods: names of :func:`~lightning_tpauc.comparison.method_names` or
            :class:`~lightning_tpauc.comparison.Method` objects; ``None``: cross-entropy, balanced cross-entropy, STACO
            and PAUCI, which is left out where data have several labels.
        trials: number of learning rates to try for each method: its default, and others around it, half a power of ten
            apart. Validation data choose the best.
        seeds: number of repetitions with other initial weights and batches.
        folds: number of folds of a cross-validation; each is a repetition.
        processes: how many trainings run side by side, each in a process and a thread of its own, on CPUs. The results
            equal those of one after the other, up to rounding that depends on the number of threads.
        rectangles: further (min_tpr, max_fpr) pairs to report.
        module: arguments of the module for all methods, such as ``{"optimizer": ...}``, or ``{"tasks": ...}`` for data
            with several labels.
        **trainer: arguments of the Trainer; ``max_epochs`` or ``max_steps`` among them.

    Returns:
        The report; printing it shows the table and the verdicts.

    Raises:
        ArgumentError: if an argument is out of range.
        DataError: if there is no validation set.
        UnsupportedError: if a method that was asked for trains one label, and the data have several.
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
    setup = ObjectSetup(model, datamodule, module or {}, trainer)
    options: dict[str, Any] = {"methods": methods, "trials": trials, "seeds": seeds, "folds": folds}
    options["processes"] = processes
    return Comparison(setup, folder, (min_tpr, max_fpr), rectangles=rectangles, **options).run()


class Comparison:
    """Methods x learning rates x runs on one problem. What was stopped goes on when it is run in the same folder again.

    :func:`compare` makes one of Python objects, ``lightning-tpauc compare`` one of a configuration.

    Args:
        setup: makes modules, data and Trainers.
        folder: where results are written; finished trainings lie in its folder ``cells``.
        rectangle: the (min_tpr, max_fpr) that methods train for.
        methods: names or :class:`Method` objects; see :func:`compare`.
        trials: learning rates per method.
        seeds: number of seeds.
        folds: number of folds, or ``None``.
        rectangles: further (min_tpr, max_fpr) pairs to report.
        first_seed: the first seed; the others follow it.
        processes: how many trainings run side by side, each in a process and a thread of its own, on CPUs.

    Raises:
        ArgumentError: if an argument is out of range.

    Example:
        >>> import torch
        >>> setup = ObjectSetup(torch.nn.Linear(3, 1), None, {}, {"max_steps": 5})
        >>> [method.name for method in Comparison(setup, "somewhere", (0.5, 0.5), trials=3).methods][:2]
        ['cross-entropy', 'balanced cross-entropy']
    """

    def __init__(
        self,
        setup: Setup,
        folder: str | Path,
        rectangle: tuple[float, float],
        *,
        methods: Sequence[str | Method] | None = None,
        trials: int = 1,
        seeds: int = 1,
        folds: int | None = None,
        rectangles: Sequence[tuple[float, float]] = (),
        first_seed: int = 0,
        processes: int = 1,
    ) -> None:
        check_count(seeds, "seeds", 1)
        check_count(processes, "processes", 1)
        if folds is not None:
            check_count(folds, "folds", 2)
        self.setup, self.folder, self.folds, self.processes = setup, Path(folder), folds, processes
        self.methods, self.factors = chosen_methods(methods), rate_factors(trials)
        self._methods_were_chosen = bool(methods)
        given = [check_rectangle(*r) for r in (rectangle, *rectangles)]
        self.rectangles = list(dict.fromkeys(given))
        parts = [None] if folds is None else list(range(folds))
        self.runs = [Run(first_seed + k, fold) for k in range(seeds) for fold in parts]
        self.store = Store(self.folder / "cells", Outcome)
        self._identities: dict[Run, dict[str, Any]] = {}
        self._budget = Budget(0, 1)
        self._per_step: dict[str, int] = {}
        #: Of data with several labels; ``None`` for one label.
        self.labels: Labels | None = None
        self._left_out: list[str] = []
        self._unvalidated: dict[str, None] = {}

    @property
    def baseline(self) -> str:
        """Cross-entropy if it takes part, else the first method."""
        names = [method.name for method in self.methods]
        return BASELINE if BASELINE in names else names[0]

    def run(self) -> Report:
        """Train what is missing, choose, test, and write the report.

        Raises:
            DataError: if there is no validation set.
            MissingExtraError: if matplotlib is not installed.
        """
        import_extra("matplotlib.figure", "plot")  # found out now, not when everything is trained
        try:
            with quiet():
                return self._run()
        finally:
            self.setup.close()

    def _run(self) -> Report:
        if self.processes > 1:
            kind = self.setup.trainer([], alone()).strategy.root_device.type
            check_processes(self.processes, kind)
        part = "test" if self._prepare() else "validation"
        self._train()
        chosen = {m: best_factor(self.store, {f: self._cells(m, f) for f in self.factors}) for m in self.methods}
        if part == "test":
            self._test(chosen)
        scores = {m.name: self._scores(m, f, "test" if part == "test" else "train") for m, f in _known(chosen)}
        results = self._results(chosen, scores, part)
        return write_report(results, self.folder, title_of(results, self.runs))

    # ---------------------------------------------------------------- what is to be done

    def _prepare(self) -> bool:
        """Look at the data and the initial weights of each run; returns whether there is a test set."""
        tests = True
        for run in self.runs:
            datamodule: Any = self.setup.datamodule(run, self.folds)
            datamodule.prepare_data()
            datamodule.setup("fit")
            module = build_module(self.setup, self.methods[0], self.rectangles[0], run.seed, 1.0)
            labels = labels_of_data(datamodule, module.label_settings)
            self._unvalidated |= dict.fromkeys(require_validation(datamodule, labels))
            if not self._per_step:
                self._measure(datamodule, labels)
            _require_same_labels(self.labels, labels)
            self._identities[run] = {
                **self.setup.identity(),
                "weights": weights_digest(module),
                "positives": getattr(datamodule, "fingerprint", None),
                "rectangle": list(self.rectangles[0]),
                "budget": self._budget._asdict(),
                "num_folds": self.folds,
                **({} if labels is None else {"labels": labels.state_dict()}),
            }
            tests = tests and has_test(datamodule)
        return tests

    def _measure(self, datamodule: Any, labels: Labels | None) -> None:
        chosen = self._methods_were_chosen
        self.labels = labels
        self.methods, self._left_out = methods_for(self.methods, labels, self.rectangles[0], chosen=chosen)
        for method in self.methods:
            algorithm = method.algorithm(*self.rectangles[0])
            self._per_step[method.name] = examples_per_step(datamodule, algorithm)
        usual = sum(datamodule.batch_sampler().global_sizes(1)[:2])
        self._budget = as_budget(self.setup.trainer_options, datamodule.steps_per_epoch, usual)

    def _cells(self, method: Method, factor: float, kind: Any = "train") -> list[Cell]:
        own = {
            "algorithm": repr(method.algorithm(*self.rectangles[0])),
            "options": {name: shown(value) for name, value in method.options.items()},
            "per_step": self._per_step[method.name],
        }
        return [Cell(method.name, factor, run, kind, {**self._identities[run], **own}) for run in self.runs]

    # ---------------------------------------------------------------- doing it

    def _train(self) -> None:
        methods = {method.name: method for method in self.methods}
        cells = [cell for m in self.methods for factor in self.factors for cell in self._cells(m, factor)]
        # all methods of a run first, so that a comparison that is stopped has whole runs
        cells.sort(key=lambda cell: self.runs.index(cell.run))

        def train(cell: Cell, advance: Callable[[float], object]) -> None:
            common = self.rectangles[0], self._budget, self.folds, advance
            self.store.add(cell, *train_cell(self.setup, methods[cell.method], cell, *common))

        self._each(cells, "training", train)

    def _test(self, chosen: Mapping[Method, float | None]) -> None:
        trained: dict[str, tuple[Cell, Method, Cell]] = {}
        for method, factor in _known(chosen):
            for tested, source in zip(self._cells(method, factor, "test"), self._cells(method, factor), strict=True):
                trained[tested.key] = tested, method, source

        def test(cell: Cell, _: Callable[[float], object]) -> None:
            method, source = trained[cell.key][1:]
            weights = self.store.tensors(source)["weights"]
            self.store.add(cell, *score_test_set(self.setup, method, cell, self.rectangles[0], self.folds, weights))

        self._each([tested for tested, _, _ in trained.values()], "testing", test)

    def _each(self, cells: Sequence[Cell], what: str, do: Callable[[Cell, Callable[[float], object]], object]) -> None:
        """Do what is missing, one after the other or side by side."""
        missing = missing_cells(cells, self.store)
        if not missing:
            return
        before = len(cells) - len(missing)
        with progress_bar(what, before, len(cells), bar_format=_BAR) as bar:
            if self.processes > 1:
                work = [partial(do, cell) for cell in missing]
                run_side_by_side(work, self.processes, lambda done: bar.update(before + done - bar.n))
                return
            for done, cell in enumerate(missing, start=before):
                bar.set_description(f"{what} {cell.method}")
                do(cell, bar.update)
                bar.update(done + 1 - bar.n)

    def _scores(self, method: Method, factor: float, kind: str) -> list[Evaluated]:
        found = [self.store.tensors(cell) for cell in self._cells(method, factor, kind)]
        return [Evaluated(tensors["scores"], tensors["target"]) for tensors in found]

    # ---------------------------------------------------------------- what came out

    def _results(
        self, chosen: Mapping[Method, float | None], scores: Mapping[str, list[Evaluated]], part: str
    ) -> Results:
        first, labels = self.rectangles[0], self.labels
        own = [] if labels is None else list(zip(labels.names, labels.rectangles(CrossEntropy(*first)), strict=True))
        found = evaluate(scores, self.baseline, self.rectangles, own, self.folds or 1)
        rows = [self._row(method, factor, found.measured, found.intervals) for method, factor in chosen.items()]
        curves = {method.name: [o.curve for o in self._outcomes(method, factor)] for method, factor in _known(chosen)}
        shown = (self.rectangles, rows, found.differences, self.baseline, part, scores, curves, found.num_resamples)
        results = Results(*shown, labels=found.labels)
        left_out = [*left_out_methods(self._left_out), *unvalidated(list(self._unvalidated), part), *self.setup.notes()]
        return replace(results, notes=notes_of(results, self.runs, left_out))

    def _row(self, method: Method, factor: float | None, measured: Any, intervals: Any) -> Row:
        if factor is None:
            return Row(method.name, {}, failed=self._why_failed(method), tried=len(self.factors))
        found = self._outcomes(method, factor)
        return Row(
            method.name,
            measured[method.name],
            intervals[method.name],
            [outcome.seconds for outcome in found],
            found[0].examples,
            found[0].optimizer,
            len(self.factors),
            len(self.factors) > 1 and factor in (min(self.factors), max(self.factors)),
            any(outcome.kept_start for outcome in found),
        )

    def _outcomes(self, method: Method, factor: float) -> list[Outcome]:
        found = [self.store.get(cell) for cell in self._cells(method, factor)]
        return [outcome for outcome in found if outcome is not None]

    def _why_failed(self, method: Method) -> str:
        outcomes = [self.store.get(cell) for factor in self.factors for cell in self._cells(method, factor)]
        return next((o.message for o in outcomes if o is not None and o.message), "did not finish")


def _known(chosen: Mapping[Method, float | None]) -> Iterator[tuple[Method, float]]:
    """Methods that have finished, and their best learning rate."""
    for method, factor in chosen.items():
        if factor is not None:
            yield method, factor


def _require_same_labels(first: Labels | None, labels: Labels | None) -> None:
    if first != labels:
        names = ["one label" if own is None else f"the labels {listed(own.names)}" for own in (first, labels)]
        msg = f"Expected the same labels in all runs, but the data of the first have {names[0]}, and others {names[1]}."
        raise ArgumentError(msg)
