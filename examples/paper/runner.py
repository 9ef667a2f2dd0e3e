"""What is to be run of an experiment, and running what is missing: one file of results for each trial."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from examples.paper.catalog import Experiment, Schedule
from examples.paper.methods import Method, Settings, settings_of
from examples.paper.trial import Options, Outcome, Trial, pretrained_path, run_trial
from lightning_tpauc.files import replacing
from lightning_tpauc.metrics.reporting import Rectangle, metric_name

RunTrial = Callable[[Experiment, Method | None, Trial, int, Options], Outcome]


class Results:
    """Finished trials, a JSON file each in ``cells``, which is written once, whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.cells = folder / "cells"

    def add(self, trial: Trial, outcome: Outcome) -> None:
        """Write an outcome."""
        with replacing(self._path(trial)) as file:
            file.write((json.dumps({"key": asdict(trial), "outcome": asdict(outcome)}, indent=1) + "\n").encode())

    def get(self, trial: Trial) -> Outcome | None:
        """The outcome of a trial; ``None`` if it hasn't finished."""
        path = self._path(trial)
        return Outcome(**json.loads(path.read_text(encoding="utf-8"))["outcome"]) if path.is_file() else None

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Outcome]]:
        """All (fields of the trial, outcome)."""
        for path in sorted(self.cells.glob("*.json")):
            record = json.loads(path.read_text(encoding="utf-8"))
            yield record["key"], Outcome(**record["outcome"])

    def _path(self, trial: Trial) -> Path:
        return self.cells / f"{trial.digest}.json"


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

    def folds(self, *, searching: bool = False) -> Sequence[int | None]:
        """Folds to train on; ``[None]`` where the data have a validation part."""
        if not self.experiment.folds:
            return [None]
        return range(min(self.search_folds, self.num_folds) if searching else self.num_folds)

    def pretraining(self) -> list[Trial]:
        """The shared starts."""
        if self.experiment.pretrain is None:
            return []
        return [self._pretraining(fold, seed) for fold in self.folds() for seed in self.seeds]

    def search(self, method: Method, rectangle: Rectangle, settings: Settings) -> list[Trial]:
        """The trials that a setting is judged by for a rectangle that is searched."""
        return self._trials("search", method, rectangle, settings, self.folds(searching=True))

    def final(self, method: Method, rectangle: Rectangle, settings: Settings) -> list[Trial]:
        """The trials that the chosen setting of a rectangle is reported by."""
        return self._trials("final", method, rectangle, settings, self.folds())

    def searched(self, rectangle: Rectangle) -> Rectangle:
        """The rectangle whose search chooses the setting for one that is reported."""
        return self.experiment.rectangles[0] if self.one_search else rectangle

    def _trials(
        self,
        kind: Literal["search", "final"],
        method: Method,
        rectangle: Rectangle,
        settings: Settings,
        folds: Sequence[int | None],
    ) -> list[Trial]:
        protocol: dict[str, object] = {
            "schedule": asdict(self.schedule or self.experiment.schedule),
            "algorithm": method.algorithm,
            "fixed": dict(method.fixed),
            "sizes": list(method.sizes),
            **self._setup(),
        }
        if method.epoch_sizes is not None:
            protocol["epoch_sizes"] = list(method.epoch_sizes)
        trained = (rectangle.min_tpr, rectangle.max_fpr) if method.by_rectangle else None
        found = []
        for fold in folds:
            for seed in self.seeds:
                own = {} if self.experiment.pretrain is None else {"pretrained": asdict(self._pretraining(fold, seed))}
                about = self.experiment.name, method.name, settings, fold, seed, trained, kind
                found.append(Trial(*about, {**protocol, **own}))
        return found

    def _pretraining(self, fold: int | None, seed: int) -> Trial:
        schedule = self.experiment.pretrain or Schedule()
        if self.schedule is not None and self.schedule.epochs is not None:
            schedule = schedule.scaled(self.schedule.epochs)
        protocol = {"schedule": asdict(schedule), **self._setup()}
        return Trial(self.experiment.name, "pre-training", {}, fold, seed, None, "pretrain", protocol)

    def _setup(self) -> dict[str, object]:
        data, model = self.experiment.data, self.experiment.model
        return {"data": [data[0], dict(data[1])], "model": [model[0], dict(model[1])], "num_folds": self.num_folds}


def choose(plan: Plan, method: Method, reported: Rectangle, store: Results) -> Settings | None:
    """The setting with the best mean validation value; ``None`` if all failed or none is complete."""
    best, chosen = -1.0, None
    rectangle = plan.searched(reported)
    for settings in settings_of(method.grid, plan.budget):
        outcomes = [store.get(trial) for trial in plan.search(method, rectangle, settings)]
        values = [o.val[metric_name(rectangle)] for o in outcomes if o is not None and o.status == "finished"]
        if len(values) == len(outcomes) and sum(values) / len(values) > best:
            best, chosen = sum(values) / len(values), settings
    return chosen


def chosen_settings(plan: Plan, store: Results) -> Iterator[tuple[Method, Rectangle, Settings]]:
    """(method, rectangle that is reported, chosen setting) for all that have one."""
    for reported in plan.experiment.rectangles:
        for method in plan.experiment.methods:
            settings = choose(plan, method, reported, store)
            if settings is not None:
                yield method, reported, settings


def run_plan(plan: Plan, store: Results, options: Options, processes: int = 1, run: RunTrial = run_trial) -> None:
    """Pre-train, search, then train the chosen settings again with test values; skips what the store has."""
    search = [
        trial
        for method in plan.experiment.methods
        for rectangle in dict.fromkeys(map(plan.searched, plan.experiment.rectangles))
        for settings in settings_of(method.grid, plan.budget)
        for trial in plan.search(method, rectangle, settings)
    ]
    _run_missing(plan.pretraining(), "pre-training", plan, store, options, processes, run)
    _run_missing(search, "search", plan, store, options, processes, run)
    final = [trial for chosen in chosen_settings(plan, store) for trial in plan.final(*chosen)]
    _run_missing(final, "final runs", plan, store, options, processes, run)


def _run_missing(
    trials: Iterable[Trial], title: str, plan: Plan, store: Results, options: Options, processes: int, run: RunTrial
) -> None:
    unique = list({trial.digest: trial for trial in trials}.values())
    unique.sort(key=lambda trial: (trial.fold or 0, trial.seed))  # whole folds first: a table may be made of them
    missing = [trial for trial in unique if not _is_done(trial, store, options)]
    if not missing:
        return
    methods = {method.name: method for method in plan.experiment.methods}
    jobs = [(plan, methods.get(trial.method), trial, store, options, run) for trial in missing]
    title, done = f"{plan.experiment.name}: {title}", len(unique) - len(missing)
    with tqdm(desc=title, initial=done, total=len(unique), smoothing=0) as bar:
        if processes == 1:
            for job in jobs:
                _run_one(job)
                bar.update()
            return
        # spawn: a forked copy of a process that has used torch's threads may hang
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
            for _ in pool.map(_run_one, jobs):
                bar.update()


def _is_done(trial: Trial, store: Results, options: Options) -> bool:
    outcome = store.get(trial)
    if outcome is None or outcome.status == "failed" or trial.kind != "pretrain":
        return outcome is not None
    return pretrained_path(trial, options).is_file()  # the cache may have been emptied, or be on another machine


def _run_one(job: tuple[Plan, Method | None, Trial, Results, Options, RunTrial]) -> None:
    plan, method, trial, store, options, run = job
    if not _is_done(trial, store, options):  # another runner of the same results may have done it by now
        store.add(trial, run(plan.experiment, method, trial, plan.num_folds, options))
