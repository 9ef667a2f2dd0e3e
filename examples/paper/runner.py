"""Runs what is missing: in several processes, one result at a time into the store."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Literal

from examples.paper.build import Options
from examples.paper.catalog import Experiment, Schedule
from examples.paper.grids import Settings, settings_of
from examples.paper.methods import Method
from examples.paper.records import Outcome, Results, Trial
from examples.paper.trial import pretrained_path, run_trial
from lightning_tpauc.comparison.comparing import progress_bar
from lightning_tpauc.metrics.reporting import Rectangle, metric_name

__all__ = ("Plan", "choose", "chosen_settings", "run_missing", "run_plan")

Job = tuple[Experiment, Method | None, Trial, int, Options]
RunTrial = Callable[[Experiment, Method | None, Trial, int, Options], Outcome]


@dataclass(frozen=True)
class Plan:
    """What is to be run of an experiment.

    Attributes:
        experiment: the experiment, with the methods that take part.
        num_folds: number of folds.
        search_folds: settings are compared on the validation part of the first so many folds.
        seeds: seeds; settings are compared on all of them.
        budget: most settings per method and rectangle; ``None``: the whole grid.
        schedule: overrides the experiment's.
        one_search: whether settings are compared on the first rectangle only and serve all of them, which halves the
            search.
    """

    experiment: Experiment
    num_folds: int = 5
    search_folds: int = 5
    seeds: tuple[int, ...] = (0,)
    budget: int | None = None
    schedule: Schedule | None = None
    one_search: bool = False

    def folds(self, *, searching: bool = False) -> list[int | None]:
        """Folds to train on; ``[None]`` where the data have a validation part."""
        if not self.experiment.folds:
            return [None]
        return list(range(min(self.search_folds, self.num_folds) if searching else self.num_folds))

    def pretraining(self) -> list[Trial]:
        """The shared starts."""
        if self.experiment.pretrain is None:
            return []
        return [self._pretraining(fold, seed) for fold in self.folds() for seed in self.seeds]

    def search(self, method: Method, rectangle: tuple[float, float] | None, settings: Settings) -> list[Trial]:
        """The trials that a setting is judged by."""
        return [
            self.trial(method, rectangle, settings, fold, seed)
            for fold in self.folds(searching=True)
            for seed in self.seeds
        ]

    def final(self, method: Method, rectangle: tuple[float, float] | None, settings: Settings) -> list[Trial]:
        """The trials that the chosen setting is reported by."""
        return [
            self.trial(method, rectangle, settings, fold, seed, final=True)
            for fold in self.folds()
            for seed in self.seeds
        ]

    def trained(self, method: Method, rectangle: Rectangle) -> tuple[float, float] | None:
        """The rectangle that a method trains on for one that is reported."""
        return (rectangle.min_tpr, rectangle.max_fpr) if method.by_rectangle else None

    def searched(self, rectangle: Rectangle) -> Rectangle:
        """The rectangle whose search chooses the setting for one that is reported."""
        return self.experiment.rectangles[0] if self.one_search else rectangle

    def trial(
        self,
        method: Method,
        rectangle: tuple[float, float] | None,
        settings: Settings,
        fold: int | None,
        seed: int,
        *,
        final: bool = False,
    ) -> Trial:
        """One trial; its protocol holds everything else that changes the result."""
        protocol: dict[str, object] = {
            "schedule": asdict(self.schedule or self.experiment.schedule),
            "algorithm": method.algorithm,
            "fixed": dict(method.fixed),
            "sizes": list(method.sizes),
            **self._setup(),
        }
        if method.epoch_sizes is not None:
            protocol["epoch_sizes"] = list(method.epoch_sizes)
        if self.experiment.pretrain is not None:
            protocol["pretrained"] = asdict(self._pretraining(fold, seed))
        kind: Literal["final", "search"] = "final" if final else "search"
        return Trial(self.experiment.name, method.name, settings, fold, seed, rectangle, kind, protocol)

    def _pretraining(self, fold: int | None, seed: int) -> Trial:
        schedule = self.experiment.pretrain
        if schedule is not None and self.schedule is not None and self.schedule.epochs is not None:
            schedule = schedule.scaled(self.schedule.epochs)
        protocol = {"schedule": asdict(schedule or Schedule()), **self._setup()}
        return Trial(self.experiment.name, "pre-training", {}, fold, seed, None, "pretrain", protocol)

    def _setup(self) -> dict[str, object]:
        data, model = self.experiment.data, self.experiment.model
        return {"data": [data[0], dict(data[1])], "model": [model[0], dict(model[1])], "num_folds": self.num_folds}


def choose(plan: Plan, method: Method, reported: Rectangle, store: Results) -> Settings | None:
    """The setting with the best mean validation value; ``None`` if all failed or none is complete.

    Args:
        plan: what is run.
        method: the method.
        reported: the rectangle that is reported.
        store: the results.
    """
    best, chosen = -1.0, None
    counts = plan.searched(reported)
    rectangle, name = plan.trained(method, counts), metric_name(counts)
    for settings in settings_of(method.grid, plan.budget):
        outcomes = [store.get(trial) for trial in plan.search(method, rectangle, settings)]
        values = [o.val[name] for o in outcomes if o is not None and o.status == "finished"]
        if len(values) == len(outcomes) and sum(values) / len(values) > best:
            best, chosen = sum(values) / len(values), settings
    return chosen


def run_plan(plan: Plan, store: Results, options: Options, processes: int = 1, run: RunTrial = run_trial) -> None:
    """Pre-train, search, then train the chosen settings again with test values; skips what the store has.

    Args:
        plan: what to run.
        store: where results lie and go.
        options: where to read and how to run.
        processes: number of processes; 1 runs in this one.
        run: runs one trial.
    """
    methods = {method.name: method for method in plan.experiment.methods}
    common = (plan, methods, store, options, processes, run)
    run_missing(plan.pretraining(), "pre-training", *common)
    search = [
        trial
        for method in methods.values()
        for rectangle in dict.fromkeys(plan.trained(method, plan.searched(r)) for r in plan.experiment.rectangles)
        for settings in settings_of(method.grid, plan.budget)
        for trial in plan.search(method, rectangle, settings)
    ]
    search.sort(key=lambda trial: (trial.fold or 0, trial.seed))  # whole folds first: a table may be made of them
    run_missing(search, "search", *common)
    final: dict[str, Trial] = {}
    for method, reported, settings in chosen_settings(plan, store):
        trials = plan.final(method, plan.trained(method, reported), settings)
        final.update({trial.key: trial for trial in trials})
    run_missing(sorted(final.values(), key=lambda t: (t.fold or 0, t.seed)), "final runs", *common)


def chosen_settings(plan: Plan, store: Results) -> Iterator[tuple[Method, Rectangle, Settings]]:
    """(method, rectangle that is reported, chosen setting) for all that have one."""
    for reported in plan.experiment.rectangles:
        for method in plan.experiment.methods:
            settings = choose(plan, method, reported, store)
            if settings is not None:
                yield method, reported, settings


def run_missing(
    trials: Iterable[Trial],
    title: str,
    plan: Plan,
    methods: dict[str, Method],
    store: Results,
    options: Options,
    processes: int,
    run: RunTrial,
) -> None:
    """Run the trials that the store doesn't have, with a progress bar that says how long the rest will take."""
    trials = list(trials)
    missing = [trial for trial in trials if store.get(trial) is None]
    lost = _lost_starts(missing, options)
    for part, total, name in ((lost, len(lost), "pre-training, whose weights are gone"), (missing, len(trials), title)):
        if part:
            with progress_bar(f"{plan.experiment.name}: {name}", total - len(part), total) as bar:
                jobs = _jobs(part, plan, methods, store, options, bar.update)
                with closing(_outcomes(jobs, run, processes)) as outcomes:
                    for trial, outcome in outcomes:
                        store.add(trial, outcome)
                        bar.update()


def _jobs(
    trials: list[Trial],
    plan: Plan,
    methods: dict[str, Method],
    store: Results,
    options: Options,
    skip: Callable[[], object],
) -> Iterator[Job]:
    """The work, looked up when it is handed out: another runner of the same results may have done it by then."""
    for trial in trials:
        there = trial.kind != "pretrain" or pretrained_path(trial, options).is_file()
        if there and store.get(trial) is not None:
            skip()
        else:
            yield plan.experiment, methods.get(trial.method), trial, plan.num_folds, options


def _lost_starts(trials: list[Trial], options: Options) -> list[Trial]:
    """Shared starts that these trials need, but whose weights aren't in the cache: emptied, or on another machine."""
    starts = [Trial(**trial.protocol["pretrained"]) for trial in trials if "pretrained" in trial.protocol]
    unique = {start.key: start for start in starts}
    return [start for start in unique.values() if not pretrained_path(start, options).is_file()]


def _outcomes(jobs: Iterable[Job], run: RunTrial, processes: int) -> Generator[tuple[Trial, Outcome]]:
    if processes == 1:
        for job in jobs:
            yield job[2], run(*job)
        return
    waiting = iter(jobs)
    running: dict[Future[Outcome], Trial] = {}
    # spawn: a forked copy of a process that has used torch's threads may hang
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_end_with_parent) as pool:
        try:
            while True:
                for job in itertools.islice(waiting, 2 * processes - len(running)):
                    running[pool.submit(run, *job)] = job[2]
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _end_with_parent() -> None:
    """Let a worker end when the process that handed out its work was killed; it would wait for more forever."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait_and_exit() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait_and_exit, daemon=True).start()
