"""Runs a comparison: trains what is missing, chooses on validation data, tests at the end, writes the report."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.utilities.seed import isolate_rng
from torch import nn
from tqdm import tqdm

from lightning_tpauc.algorithms import Algorithm, CrossEntropy
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
from lightning_tpauc.comparison.report import Report, notes_of, title_of, write_report
from lightning_tpauc.comparison.resampling import Evaluated, have_both
from lightning_tpauc.comparison.results import Results, Row, evaluate
from lightning_tpauc.comparison.store import Store
from lightning_tpauc.comparison.training import (
    Setup,
    description,
    named,
    score_test_set,
    structure,
    train_cell,
    weights_digest,
)
from lightning_tpauc.data.digest import content_digest
from lightning_tpauc.errors import ArgumentError, DataError
from lightning_tpauc.extras import import_extra
from lightning_tpauc.functional.checks import check_count, check_rectangle
from lightning_tpauc.module import TPAUCModule
from lightning_tpauc.scoring.labels import Labels, labels_of_data, listed
from lightning_tpauc.version import __version__

_BAR = "{desc}{percentage:3.0f}%|{bar}| {n:.1f} of {total}, {elapsed} gone, {remaining} left"
#: What a process of its own works on: inherited through the fork.
_work: Sequence[Callable[[], object]] = ()


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
    called again with the same folder; what was trained on other data, with another model or other settings is trained
    anew. For data with several labels all this is by the mean over the labels, as ``val/tpauc`` is, and the report
    shows each label as well. Random numbers and the environment are left as they were.

    Args:
        model: a backbone, whose weights all methods start from; a function that makes one; or a subclass of
            :class:`~lightning_tpauc.TPAUCModule`, or ``functools.partial`` of one with its own arguments.
        datamodule: a data module; or a function that makes one, ``datamodule(seed=...)``, with ``folds``
            ``datamodule(seed=..., fold=..., num_folds=...)``.
        folder: where results go: ``report.html``, ``report.txt``, ``runs.csv``, pictures.
        min_tpr: lower bound of the true positive rate of the rectangle that is trained for.
        max_fpr: upper bound of its false positive rate.
        methods: names of :func:`~lightning_tpauc.comparison.method_names` or
            :class:`~lightning_tpauc.comparison.Method` objects; ``None``: cross-entropy, balanced cross-entropy, STACO
            and PAUCI, which is left out where data have several labels.
        trials: number of learning rates to try for each method: its default, and others around it, half a power of ten
            apart. Validation data choose the best.
        seeds: number of repetitions with other initial weights and batches. Each makes its network anew, so more than
            one need a function as ``model``, or a class. Where it loads trained weights, only the batches differ.
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
    _check_objects(model, datamodule, trainer, seeds, folds)
    options = dict(module or {})
    seed = getattr(datamodule, "seed", None) if isinstance(datamodule, LightningDataModule) else None
    make_data = functools.partial(_datamodule, datamodule, seed, folds)
    setup = Setup(functools.partial(_module, model, options), make_data, trainer, options)
    counts: dict[str, Any] = {"trials": trials, "seeds": seeds, "folds": folds, "processes": processes}
    try:
        return Comparison(setup, folder, (min_tpr, max_fpr), methods=methods, rectangles=rectangles, **counts).run()
    finally:
        if seed is not None:
            datamodule.seed = seed  # type: ignore[union-attr]  # a data module that has one


def _check_objects(model: Any, datamodule: Any, trainer: Mapping[str, Any], seeds: int, folds: int | None) -> None:
    unknown = sorted(set(trainer) - set(inspect.signature(Trainer).parameters))
    msg = ""
    if unknown:
        msg = f"Expected arguments of `compare` or of lightning's Trainer, but got {', '.join(map(repr, unknown))}."
    elif isinstance(model, TPAUCModule):
        msg = (
            "Expected `model` to be a backbone, a function that makes one, or a subclass of TPAUCModule, but got an "
            f"object with an algorithm of its own. Pass its class, or `partial({type(model).__name__}, ...)` with its "
            "other arguments."
        )
    elif not callable(datamodule) and not isinstance(datamodule, LightningDataModule):
        msg = f"Expected `datamodule` to be a LightningDataModule or a function that makes one, but got {datamodule!r}."
    elif folds is not None and isinstance(datamodule, LightningDataModule):
        msg = (
            "`folds` needs a data module for each of them: pass a function, such as `datamodule=lambda seed, fold, "
            "num_folds: PosNegDataModule(data, seed=seed, fold=fold, num_folds=num_folds)`."
        )
    given = [*model.args, *model.keywords.values()] if isinstance(model, functools.partial) else [model]
    if not msg and seeds != 1 and any(isinstance(entry, nn.Module) for entry in given):
        msg = (
            f"`seeds={seeds}` repeats with other initial weights, but the network was made before. Pass a function "
            "that makes it, such as `model=lambda: Net()`; one that loads trained weights repeats with other batches."
        )
    if msg:
        raise ArgumentError(msg)


def _module(model: Any, given: Mapping[str, Any], algorithm: Algorithm, options: Mapping[str, Any]) -> TPAUCModule:
    own = {**given, **options}
    made = model.func if isinstance(model, functools.partial) else model
    if isinstance(made, type) and issubclass(made, TPAUCModule):
        module: TPAUCModule = copy.deepcopy(model)(algorithm=algorithm, **own)
        return module
    return TPAUCModule(copy.deepcopy(model) if isinstance(model, nn.Module) else model(), algorithm, **own)


def _datamodule(given: Any, seed: int | None, folds: int | None, run: Run) -> LightningDataModule:
    if not isinstance(given, LightningDataModule):
        made: LightningDataModule = given(
            seed=run.seed, **({} if folds is None else {"fold": run.fold, "num_folds": folds})
        )
        return made
    if seed is not None:
        given.seed = seed + run.seed  # type: ignore[attr-defined]  # it has one
    return given


class Comparison:
    """Methods x learning rates x runs on one problem. What was stopped goes on when it is run in the same folder again.

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

    Raises:
        ArgumentError: if an argument is out of range.

    Example:
        >>> comparison = Comparison(Setup(None, None, {"max_steps": 5}), "somewhere", (0.5, 0.5), trials=3)
        >>> [method.name for method in comparison.methods][:2]
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
        self.rectangles = list(dict.fromkeys(check_rectangle(*r) for r in (rectangle, *rectangles)))
        parts = [None] if folds is None else list(range(folds))
        self.runs = [Run(first_seed + k, fold) for k in range(seeds) for fold in parts]
        self.store = Store(self.folder / "cells", Outcome)
        #: Of data with several labels; ``None`` for one label.
        self.labels: Labels | None = None
        self._methods_were_chosen = bool(methods)
        self._identities: dict[Run, dict[str, Any]] = {}
        self._budget = Budget(0, 1)
        self._per_step: dict[str, int] = {}
        self._notes: dict[str, None] = {}

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
        with _undisturbed():
            if self.processes > 1:
                kind = self.setup.trainer([]).strategy.root_device.type
                if kind != "cpu":
                    msg = f"`processes` trains on CPUs, but the Trainer takes {kind}. Pass `accelerator='cpu'`."
                    raise ArgumentError(msg)
            part = "test" if self._prepare() else "validation"
            self._train()
            chosen = {m: best_factor({f: self._outcomes(m, f) for f in self.factors}) for m in self.methods}
            known = {method: factor for method, factor in chosen.items() if factor is not None}
            if part == "test":
                self._test(known)
            results = self._results(chosen, known, part)
            return write_report(results, self.folder, title_of(results, self.runs))

    # ---------------------------------------------------------------- what is to be done

    def _prepare(self) -> bool:
        """Look at the data and the initial weights of each run; returns whether there is a test set."""
        tests = True
        for run in self.runs:
            datamodule: Any = self.setup.datamodule(run)
            datamodule.prepare_data()
            datamodule.setup("fit")
            module = self.setup.build(self.methods[0], self.rectangles[0], run)
            labels = labels_of_data(datamodule, module.label_settings)
            lacking = _require_both_classes(datamodule.val_dataloader(), "validation", labels)
            if not self._per_step:
                self._measure(datamodule, labels)
            elif self.labels != labels:
                names = [None if own is None else listed(own.names) for own in (self.labels, labels)]
                msg = f"Expected the same labels in all runs, but the first have {names[0]}, and others {names[1]}."
                raise ArgumentError(msg)
            tests = _has_test(datamodule, labels) and tests
            if lacking:
                lack = f"{listed(lacking)} {'lacks' if len(lacking) == 1 else 'lack'} a class in validation data"
                self._notes[f"{lack}: the other labels alone chose weights and learning rates."] = None
            self._identities[run] = {
                "version": __version__,
                "weights": weights_digest(module),
                "model": content_digest(structure(module), description(self.setup.settings)),
                "trainer": self.setup.described(),
                "data": _data_digest(datamodule),
                "rectangle": list(self.rectangles[0]),
                "budget": self._budget._asdict(),
                "num_folds": self.folds,
                **({} if labels is None else {"labels": labels.state_dict()}),
            }
        return tests

    def _measure(self, datamodule: Any, labels: Labels | None) -> None:
        self.labels = labels
        chosen, first = self._methods_were_chosen, self.rectangles[0]
        self.methods, left_out = methods_for(self.methods, labels, first, chosen=chosen)
        if left_out:
            they_train = "it trains" if len(left_out) == 1 else "they train"
            self._notes[f"Without {listed(left_out)}: {they_train} one label."] = None
        self._per_step = {m.name: examples_per_step(datamodule, m.algorithm(*first)) for m in self.methods}
        usual = sum(datamodule.batch_sampler().global_sizes(1)[:2])
        self._budget = as_budget(self.setup.options, datamodule.steps_per_epoch, usual)

    def _cells(self, method: Method, factor: float, kind: Any = "train") -> list[Cell]:
        algorithm = method.algorithm(*self.rectangles[0])
        own = {
            "algorithm": f"{named(type(algorithm))} {algorithm!r}",
            "options": description(method.options),
            "per_step": self._per_step[method.name],
        }
        return [Cell(method.name, factor, run, kind, {**self._identities[run], **own}) for run in self.runs]

    def _outcomes(self, method: Method, factor: float) -> list[Outcome | None]:
        return [self.store.get(cell) for cell in self._cells(method, factor)]

    # ---------------------------------------------------------------- doing it

    def _train(self) -> None:
        methods = {method.name: method for method in self.methods}
        cells = [cell for m in self.methods for factor in self.factors for cell in self._cells(m, factor)]
        # all methods of a run first, so that a comparison that is stopped has whole runs
        cells.sort(key=lambda cell: self.runs.index(cell.run))

        def train(cell: Cell, advance: Callable[[float], object]) -> None:
            common = methods[cell.method], cell, self.rectangles[0], self._budget
            self.store.add(cell, *train_cell(self.setup, *common, advance))

        self._each(cells, "training", train)

    def _test(self, chosen: Mapping[Method, float]) -> None:
        trained = {
            tested.key: (tested, method, source)
            for method, factor in chosen.items()
            for tested, source in zip(self._cells(method, factor, "test"), self._cells(method, factor), strict=True)
        }

        def test(cell: Cell, _: Callable[[float], object]) -> None:
            method, source = trained[cell.key][1:]
            weights = self.store.tensors(source)["weights"]
            self.store.add(cell, *score_test_set(self.setup, method, cell, self.rectangles[0], weights))

        self._each([tested for tested, _, _ in trained.values()], "testing", test)

    def _each(self, cells: Sequence[Cell], what: str, do: Callable[[Cell, Callable[[float], object]], object]) -> None:
        """Do what is missing, one after the other or side by side."""
        missing = [cell for cell in cells if self.store.get(cell) is None]
        if not missing:
            return
        before = len(cells) - len(missing)
        with progress_bar(what, before, len(cells), bar_format=_BAR) as bar:
            if self.processes > 1:
                work = [functools.partial(do, cell, lambda _: None) for cell in missing]
                run_side_by_side(work, self.processes, lambda: bar.update(1))
                return
            for done, cell in enumerate(missing, start=before):
                bar.set_description(f"{what} {cell.method}")
                do(cell, bar.update)
                bar.update(done + 1 - bar.n)

    # ---------------------------------------------------------------- what came out

    def _results(self, chosen: Mapping[Method, float | None], known: Mapping[Method, float], part: str) -> Results:
        first = self.rectangles[0]
        kind: Any = "test" if part == "test" else "train"
        stored = {m.name: map(self.store.tensors, self._cells(m, factor, kind)) for m, factor in known.items()}
        scores = {name: [Evaluated(own["scores"], own["target"]) for own in runs] for name, runs in stored.items()}
        labels = [("", first)]
        if self.labels is not None:
            labels = list(zip(self.labels.names, self.labels.rectangles(CrossEntropy(*first)), strict=True))
        found = evaluate(scores, self.baseline, self.rectangles, labels, self.folds or 1)
        rows = [self._row(m, f, found.measured.get(m.name), found.intervals.get(m.name)) for m, f in chosen.items()]
        curves = {m.name: [o.curve for o in self._outcomes(m, f) if o is not None] for m, f in known.items()}
        shown = (self.rectangles, rows, found.differences, self.baseline, part, scores, curves, found.num_resamples)
        results = Results(*shown, found.labels)
        same_start = len({own["weights"] for own in self._identities.values()}) == 1
        if same_start and len({run.seed for run in self.runs}) > 1:
            self._notes["All seeds start from the same weights: they differ by their batches alone."] = None
        return replace(results, notes=notes_of(results, len(self.runs), [*self._notes, *self.setup.notes()]))

    def _row(self, method: Method, factor: float | None, measured: Any, interval: Any) -> Row:
        tried = len(self.factors)
        if factor is None:
            outcomes = [outcome for f in self.factors for outcome in self._outcomes(method, f)]
            why = next((o.message for o in outcomes if o is not None and o.message), "did not finish")
            return Row(method.name, {}, failed=why, tried=tried)
        found = [outcome for outcome in self._outcomes(method, factor) if outcome is not None]
        about = [outcome.seconds for outcome in found], found[0].examples, found[0].optimizer, tried
        at_edge = tried > 1 and factor in (min(self.factors), max(self.factors))
        return Row(method.name, measured, interval, *about, at_edge, any(outcome.kept_start for outcome in found))


# ---------------------------------------------------------------- what a comparison asks of data


def _require_both_classes(loader: Any, name: str, labels: Labels | None) -> list[str]:
    """Refuse data without both classes, which have no area; returns the names of the labels that lack one.

    A loader of one's own does not say what its labels are.
    """
    if isinstance(loader, list) and not loader:
        msg = (
            "A comparison chooses weights and settings on validation data, but there are none: pass `val_dataset`, or "
            "split a part off with `val_fraction` or `folds`."
        )
        raise DataError(msg)
    if getattr(loader, "targets", None) is None:
        return []
    targets = torch.as_tensor(loader.targets).reshape(len(loader.targets), -1)
    both = have_both(targets)
    if not both.any():
        kind = "negative" if (targets == 1).any() else "positive"
        has = f"there is no {kind}" if labels is None else f"none of the {len(both)} labels has both classes"
        msg = (
            f"A comparison measures areas, which need both classes, but {has} among the {len(targets)} examples of the "
            f"{name} set. Pass one that has, or split it off stratified (`val_fraction`, `folds`)."
        )
        raise DataError(msg)
    return [] if labels is None else [name for name, there in zip(labels.names, both, strict=True) if not there]


def _has_test(datamodule: Any, labels: Labels | None) -> bool:
    datamodule.setup("test")
    try:
        loader = datamodule.test_dataloader()
    except (DataError, MisconfigurationException):
        return False
    _require_both_classes(loader, "test", labels)
    return loader is not None


def _data_digest(datamodule: Any) -> str:
    """What the data are: all that the data module was given, and what it reads of files, by their first batch."""
    names = {*inspect.signature(type(datamodule).__init__).parameters, *vars(datamodule)} - {"self", "trainer", "seed"}
    given = {name: getattr(datamodule, name, None) for name in sorted(names) if not name.startswith("_")}
    functions = {name: value for name, value in given.items() if callable(value) or name == "negatives"}
    read = [getattr(datamodule, "fingerprint", None)]
    if given.get("train_dataset") is None:
        read.append(next(iter(datamodule.val_dataloader())))
    settings = named(type(datamodule)), description(functions)
    return content_digest({n: v for n, v in given.items() if n not in functions}, *settings, *read)


# ---------------------------------------------------------------- trainings side by side


def progress_bar(title: str, done: int, total: int, **options: Any) -> tqdm[Any]:
    """A bar that says how long the rest will take, by the speed of all that has been done in this run."""
    return tqdm(desc=title, initial=done, total=total, smoothing=0, **options)


def run_side_by_side(work: Sequence[Callable[[], object]], processes: int, done: Callable[[], object]) -> None:
    """Run functions in forks of this process, some at a time, each in one thread; ``done`` is called after each.

    After an error what has begun is finished, and nothing more is begun. The first error is raised.
    """
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(min(processes, len(work)), fork, _begin, (work,)) as pool:
        futures = [pool.submit(_do, number) for number in range(len(work))]
        try:
            for future in as_completed(futures):
                future.result()
                done()
        except BrokenProcessPool:
            msg = (
                "A training was killed, perhaps for want of memory. What has finished is kept: give the same command "
                "again, with fewer `processes`."
            )
            raise DataError(msg) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _begin(work: Sequence[Callable[[], object]]) -> None:
    global _work  # of this process alone
    _work = work
    torch.set_num_threads(1)  # the parent's pool of threads does not survive the fork


def _do(number: int) -> None:
    _work[number]()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No messages of dozens of Trainers; random numbers, filters and environment are left as they were."""
    log, environment = logging.getLogger("lightning.pytorch"), dict(os.environ)
    level = log.level
    with isolate_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            log.setLevel(level)
            for name in set(os.environ) - set(environment):  # seed_everything and Trainers write some
                del os.environ[name]
            os.environ.update(environment)
