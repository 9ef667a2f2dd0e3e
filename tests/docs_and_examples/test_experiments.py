"""The runner of the paper's experiments on a tiny one: search, choice, resuming, tables, figures."""

import csv
import itertools
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from statistics import fmean

import numpy as np
import pytest
import torch

from examples.paper import figures, recorders
from examples.paper.build import (
    PAPER_SETTINGS,
    Options,
    build_datamodule,
    build_module,
    build_trainer,
    stages,
)
from examples.paper.catalog import Experiment, Schedule, experiment_names, find_experiment
from examples.paper.figures import draw_losses, training_curves
from examples.paper.grids import at_edge, grid_values, settings_of, spread
from examples.paper.methods import Method
from examples.paper.records import Outcome, Trial, results_in
from examples.paper.report import write_report
from examples.paper.reported import reported_tpauc
from examples.paper.runner import Plan, choose, run_plan
from examples.paper.tables import rows, to_markdown
from examples.paper.timing import time_methods
from examples.paper.trial import run_trial
from lightning_tpauc import algorithms
from lightning_tpauc.errors import ArgumentError, DataError
from lightning_tpauc.metrics.reporting import Rectangle, metric_name
from tests.helpers.paths import ROOT
from tests.helpers.problems import PAPER_TRAINING, paper_sonx, paper_sota, paper_sotas, paper_staco
from tests.helpers.tolerances import assert_close
from tests.reference.tpauc import naive_tpauc

pytestmark = pytest.mark.slow


SIZES = (4, 8, 0)
needs_plot = pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
WIDE = Rectangle(0.25, 0.75)
CE = Method("CE", "CrossEntropy", {"lr": (0.01, 0.1, 1.0)}, sizes=SIZES, reported_as="CE")
STACO = Method(
    "STACO1",
    "STACO",
    {"lr": (0.01, 0.1), "alpha+beta": (0.1,)},
    {"share_negatives": True},
    by_rectangle=True,
    sizes=SIZES,
    reported_as="STACO",
)
BROKEN = Method("broken", "STACO", {"lr": (1e30, 0.1)}, {"share_negatives": True}, sizes=SIZES)
TINY = Experiment(
    "tiny",
    "ijcnn1",
    ("LIBSVMDataModule", {"train_file": "train.txt", "test_file": "test.txt"}),
    ("Linear", {"num_features": 3}),
    Schedule(steps=12, milestones=(6,)),
    (CE, STACO),
)


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    for part, seed, count in (("train", 0, 120), ("test", 1, 90)):
        random = np.random.default_rng(seed)
        labels = np.arange(count) % 3 == 0
        features = random.normal(size=(count, 3)) + 0.7 * labels[:, None]
        lines = (
            f"{'+1' if label else '-1'} " + " ".join(f"{k + 1}:{value:.6f}" for k, value in enumerate(row))
            for label, row in zip(labels, features, strict=True)
        )
        (root / f"{part}.txt").write_text("\n".join(lines) + "\n")
    return Options(str(root), str(root / "cache"), num_resamples=20, curve_points=4)


@pytest.fixture(scope="module")
def finished(options, tmp_path_factory):
    """A finished plan: two folds to search on, three to report."""
    folder = tmp_path_factory.mktemp("results")
    plan = Plan(replace(TINY, methods=(CE, STACO, BROKEN)), num_folds=3, search_folds=2)
    store = results_in(folder)
    run_plan(plan, store, options)
    return plan, store, folder


def everything(store):
    return [(json.loads(key), outcome) for key, outcome in store]


# ---------------------------------------------------------------- grids


def test_a_budget_draws_different_settings_and_the_same_ones_again():
    grid = {"a": tuple(range(100)), "b": tuple(range(100))}
    drawn = settings_of(grid, budget=50)
    assert drawn == settings_of(grid, budget=50)
    assert len({tuple(s.values()) for s in drawn}) == 50
    assert drawn != settings_of(grid, budget=50, seed=1)
    assert all(s in settings_of(grid) for s in drawn)


def test_a_large_budget_is_the_whole_grid():
    grid = {"a": (1, 2), "b": ("x", "y", "z")}
    pairs = [(s["a"], s["b"]) for s in settings_of(grid, budget=7)]
    assert pairs == list(itertools.product((1, 2), "xyz"))


def test_a_grid_of_several_products():
    grid = ({"lr": (1, 2)}, {"lr": (10, 20, 30), "kind": ("a", "b")})
    first, second = [{"lr": 1}, {"lr": 2}], [{"lr": lr, "kind": k} for lr in (10, 20, 30) for k in "ab"]
    assert settings_of(grid) == first + second
    drawn = [settings_of(grid, budget=7, seed=seed) for seed in range(5)]
    assert all(len(d) == 7 and [s for s in first + second if s in d] == d for d in drawn)


def test_grid_errors():
    with pytest.raises(ArgumentError, match="`budget` to be at least 1, but got 0"):
        settings_of({"lr": (1,)}, budget=0)
    with pytest.raises(ArgumentError, match="none for gamma"):
        settings_of({"lr": (1,), "gamma": ()})


def test_edges():
    grid = {"lr": (0.1, 1.0, 0.01), "gamma": (5,), "min_tpr": (0.5, 0.25), "kind": ("a", "b")}
    settings = {"lr": 0.1, "gamma": 5, "min_tpr": 0.5, "kind": "a"}
    assert at_edge(grid, settings) == []
    assert at_edge(({"lr": (1.0, 2.0)}, grid), settings) == []
    assert at_edge(grid, {**settings, "lr": 1.0}) == at_edge(grid, {**settings, "lr": 0.01}) == ["lr"]


def test_edges_of_what_was_tried():
    grid = {"lr": (0.1, 1.0, 0.01, 10.0), "gamma": (5, 6)}
    tried = [{"lr": 0.1, "gamma": 5}, {"lr": 1.0, "gamma": 6}, {"lr": 10.0, "gamma": 5}]
    assert at_edge(grid, tried[0]) == ["gamma"]
    assert at_edge(grid, tried[0], tried) == ["lr", "gamma"]
    assert at_edge(grid, tried[1], tried) == ["gamma"]
    assert at_edge(({"lr": (1.0, 2.0), "gamma": (7, 8)}, grid), tried[1], [*tried, {"lr": 2.0, "gamma": 7}]) == [
        "gamma"
    ]
    assert at_edge(grid, tried[1], settings_of(grid)) == at_edge(grid, tried[1])


# ---------------------------------------------------------------- search and choice


@pytest.mark.slow
def test_every_setting_is_searched_and_the_best_one_reported(finished):
    _, store, _ = finished
    found = everything(store)
    search = [trial for trial, _ in found if trial["kind"] == "search"]
    # CE: 3 settings; STACO: 2 on two rectangles; broken: 2. On two folds.
    assert len(search) == 2 * (3 + 2 * 2 + 2)
    values = {}
    for trial, outcome in found:
        if trial["kind"] == "search" and trial["method"] == "CE":
            values.setdefault(trial["settings"]["lr"], []).append(outcome.val["tpauc_tpr25_fpr75"])
    best = max(values, key=lambda lr: statistics.fmean(values[lr]))
    final = {
        trial["fold"]: outcome
        for trial, outcome in found
        if trial["kind"] == "final" and trial["method"] == "CE" and trial["settings"]["lr"] == best
    }
    assert set(final) == {0, 1, 2}


def test_the_search_sees_no_test_data(finished):
    for trial, outcome in everything(finished[1]):
        assert bool(outcome.test) == bool(outcome.curve) == (trial["kind"] == "final")


def test_the_final_run_repeats_the_search_run(finished):
    found = everything(finished[1])
    runs = {"search": {}, "final": {}}
    for trial, outcome in found:
        identity = {name: value for name, value in trial.items() if name != "kind"}
        runs[trial["kind"]][json.dumps(identity)] = outcome.val
    both = runs["search"].keys() & runs["final"].keys()
    assert len(both) >= 6
    assert all(runs["search"][key] == runs["final"][key] for key in both)


def test_a_setting_that_becomes_infinite_fails_and_is_never_chosen(finished):
    plan, store, _ = finished
    failed = [(trial, outcome) for trial, outcome in everything(store) if outcome.status == "failed"]
    assert {trial["settings"]["lr"] for trial, _ in failed} == {1e30}
    assert all(outcome.message.startswith("Not finite") for _, outcome in failed)
    assert choose(plan, BROKEN, Rectangle(0.5, 0.5), store) == {"lr": 0.1}
    assert [row.failed for row in rows(plan, store) if row.method == "broken"] == [1, 1]


def test_one_search_may_serve_all_rectangles(finished, options, tmp_path):
    plan, store, _ = finished
    once = replace(plan, one_search=True, experiment=replace(plan.experiment, methods=(STACO,)))
    assert choose(once, STACO, WIDE, store) == choose(once, STACO, Rectangle(0.5, 0.5), store)
    assert choose(once, STACO, WIDE, store) == choose(plan, STACO, Rectangle(0.5, 0.5), store)
    jobs = []

    def run(experiment, method, trial, num_folds, options):
        jobs.append(trial)
        return Outcome("finished", val={"tpauc_tpr50_fpr50": 0.5, "tpauc_tpr25_fpr75": 0.5})

    empty = results_in(tmp_path)
    run_plan(once, empty, options, run=run)
    assert {t.rectangle for t in jobs if t.kind == "search"} == {(0.5, 0.5)}
    assert {t.rectangle for t in jobs if t.kind == "final"} == {(0.5, 0.5), (0.25, 0.75)}


def test_a_choice_needs_all_folds_of_the_search(finished):
    plan, store, _ = finished
    assert choose(replace(plan, search_folds=3), CE, Rectangle(0.5, 0.5), store) is None


# ---------------------------------------------------------------- resuming


def counted(calls, stop_at=None):
    def run(experiment, method, trial, num_folds, options):
        if stop_at is not None and len(calls) == stop_at:
            raise KeyboardInterrupt
        calls.append(trial.key)
        return run_trial(experiment, method, trial, num_folds, options)

    return run


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_without_repeating(options, tmp_path):
    plan, calls = Plan(TINY, num_folds=2), []
    store = results_in(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_plan(plan, store, options, run=counted(calls, stop_at=5))
    assert len(calls) == 5
    store = results_in(tmp_path)
    run_plan(plan, store, options, run=counted(calls))
    assert len(calls) == len(set(calls)) == len(list(store))
    before = len(calls)
    run_plan(plan, store, options, run=counted(calls))
    assert len(calls) == before


def test_what_another_runner_has_finished_is_not_repeated(options, tmp_path):
    """Two runners of one results file: the second does what the first one hasn't done by then."""
    plan, calls = Plan(replace(TINY, methods=(CE,)), num_folds=2), []
    path = tmp_path / "results"

    def run(*job):
        calls.append(job[2].key)
        if len(calls) == 2:  # meanwhile another one does it all
            other = results_in(path)
            run_plan(plan, other, options, run=lambda *job: done)
        return done

    done = Outcome("finished", val={"tpauc_tpr50_fpr50": 0.5, "tpauc_tpr25_fpr75": 0.5})
    store = results_in(path)
    run_plan(plan, store, options, run=run)
    assert len(list(store)) == 2 * 3 + 2
    assert len(calls) == 2


KILLED = """
import os, signal, sys
from examples.paper.runner import Plan, run_plan
from examples.paper.records import Outcome, results_in
from tests.docs_and_examples.test_experiments import TINY

calls = []

def run(*job):
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    calls.append(job)
    return Outcome("finished", val={"tpauc_tpr50_fpr50": 0.5, "tpauc_tpr25_fpr75": 0.5})

run_plan(Plan(TINY), results_in(sys.argv[1]), None, run=run)
"""


@pytest.mark.slow
def test_what_had_finished_survives_a_kill(tmp_path):
    path = tmp_path / "results"
    code = KILLED.replace("sys.argv[1]", "__import__('pathlib').Path(sys.argv[1])")
    killed = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert len(list(results_in(path))) == 3


def in_process(experiment, method, trial, num_folds, options):
    outcome = run_trial(experiment, method, trial, num_folds, options)
    return replace(outcome, message=str(os.getpid()))


@pytest.mark.slow
def test_two_processes_find_the_same(options, tmp_path):
    plan = Plan(replace(TINY, methods=(CE,)), num_folds=2)
    results = []
    for processes in (1, 2):
        store = results_in(tmp_path / str(processes))
        run_plan(plan, store, options, processes, run=in_process)
        results.append({key: (outcome.val, outcome.test, outcome.curve) for key, outcome in store})
        workers = {outcome.message for _, outcome in store}
    assert results[0] == results[1]
    assert str(os.getpid()) not in workers


def test_pretraining_comes_first_and_is_the_start_of_all(options, tmp_path):
    staco2 = replace(STACO, name="STACO2", grid={"lr": (0.0,), "gamma": (300.0,)}, by_rectangle=False)
    experiment = replace(
        TINY,
        schedule=Schedule(epochs=2, milestones=(1,)),
        pretrain=Schedule(epochs=2, milestones=(1,)),
        model=("MLP", {"num_features": 3, "hidden_features": (4,)}),
        activation="sigmoid",
        methods=(staco2,),
    )
    plan = Plan(experiment, num_folds=2, search_folds=1)
    store = results_in(tmp_path)
    run_plan(plan, store, options)
    found = everything(store)
    assert not list(tmp_path.glob("*.[0-9]*"))
    found.sort(key=lambda pair: (pair[0]["kind"] != "pretrain", pair[0]["kind"] != "search", pair[0]["fold"]))
    assert [trial["kind"] for trial, _ in found] == ["pretrain", "pretrain", "search", "final", "final"]
    pretrained, searched = found[0][1], found[2][1]
    # with a learning rate of zero the start is the solution; its best epoch is that of the first rectangle
    assert_close(searched.val["tpauc_tpr50_fpr50"], pretrained.val["tpauc_tpr50_fpr50"], "float32")


def test_lost_starts_are_made_again_when_needed(options, tmp_path):
    elsewhere = replace(options, cache_dir=str(tmp_path))
    experiment = replace(
        TINY, schedule=Schedule(epochs=1), pretrain=Schedule(epochs=1), methods=(replace(CE, grid={"lr": (0.1,)}),)
    )
    plan, kinds = Plan(experiment, num_folds=2, search_folds=1), []

    def run(experiment, method, trial, num_folds, options):
        kinds.append((trial.kind, trial.fold))
        return run_trial(experiment, method, trial, num_folds, options)

    store = results_in(tmp_path)
    run_plan(plan, store, elsewhere, run=run)
    for path in tmp_path.glob("pretrained-*"):
        path.unlink()
    done, kinds[:] = len(kinds), []
    run_plan(plan, store, elsewhere, run=run)
    assert kinds == []  # nothing needs them
    run_plan(replace(plan, search_folds=2), store, elsewhere, run=run)
    assert done == 2 + 1 + 2
    assert kinds == [("pretrain", 1), ("search", 1)]


def test_a_start_that_failed_is_named(options, tmp_path):
    experiment = replace(TINY, schedule=Schedule(epochs=1), pretrain=Schedule(epochs=1))
    failed = Outcome("failed", message="Not finite")
    plan = Plan(experiment, num_folds=2)

    def run(experiment, method, trial, num_folds, options):
        return failed if method is None else run_trial(experiment, method, trial, num_folds, options)

    store = results_in(tmp_path)
    with pytest.raises(
        DataError, match=r"no weights of the shared start in .*pretrained-tiny-.*: its pre-training failed"
    ):
        run_plan(plan, store, replace(options, cache_dir=str(tmp_path)), run=run)


# ---------------------------------------------------------------- measurements


def test_curves_end_at_the_solution(options):
    schedule = Schedule(steps=8)
    datamodule = build_datamodule(TINY, options, 0, 3, SIZES)
    module = build_module(TINY, STACO, {"lr": 0.1, "alpha+beta": 0.1}, (0.5, 0.5), schedule)
    recorder = recorders.CurveRecorder([0, 8], Rectangle(0.5, 0.5), [WIDE])
    build_trainer(schedule, options, [recorder], validates=False).fit(module, datamodule)
    assert [point["step"] for point in recorder.curve] == [0, 8]
    pos, neg = (recorders.raw_scores(module, part)[0] for part in datamodule.scoring_dataloaders())
    expected = naive_tpauc(pos.double().numpy(), neg.double().numpy(), *WIDE)
    assert_close(recorder.curve[-1][metric_name(WIDE)], float(expected), "float32")
    expected = naive_objective(pos.double().tolist(), neg.double().tolist(), 0.75, 0.75)
    assert_close(recorder.curve[-1][recorders.objective_name(WIDE)], expected, "float32")


def naive_objective(pos, neg, theta0, theta1):
    """Mean squared hinge over the lowest share theta0 of the positives and the highest theta1 of the negatives."""
    lowest = sorted(pos)[: math.floor(theta0 * len(pos) + 1e-9)]
    highest = sorted(neg, reverse=True)[: math.floor(theta1 * len(neg) + 1e-9)]
    losses = [max(0.5 + n - p, 0.0) ** 2 for p in lowest for n in highest]
    return sum(losses) / len(losses)


@pytest.mark.parametrize("first", [True, False], ids=["before the stages", "after the stages"])
def test_the_weights_that_are_kept_are_those_that_were_validated(options, first):
    """STACO1 validates an average; wherever the callback stands, it must not keep the last iterate instead."""
    schedule = Schedule(epochs=3)
    datamodule = build_datamodule(TINY, options, 0, 3, SIZES)
    torch.manual_seed(0)
    module = build_module(TINY, STACO, {"lr": 0.1, "alpha+beta": 0.1}, (0.5, 0.5), schedule)
    best = recorders.BestWeights([Rectangle(0.5, 0.5), WIDE])
    callbacks = [best, stages(STACO)] if first else [stages(STACO), best]
    build_trainer(schedule, options, callbacks, validates=True).fit(module, datamodule)
    for rectangle, value in best.values.items():
        module.load_state_dict(best.weights[rectangle])
        scores, target = recorders.raw_scores(module, datamodule.val_dataloader())
        pos, neg = scores[target == 1].double().numpy(), scores[target == 0].double().numpy()
        assert_close(value, float(naive_tpauc(pos, neg, *rectangle)), "float32")


@pytest.mark.parametrize("method", [CE, STACO, replace(BROKEN, name="AUCM", algorithm="AUCM", fixed={})])
def test_curves_hold_the_methods_own_loss(options, method):
    """The mean of the losses since the point before, found by stepping through another recorder."""
    schedule, settings = Schedule(steps=7), {"lr": 0.1}
    curves = []
    for steps in (range(8), (0, 3, 7)):
        datamodule = build_datamodule(TINY, options, 0, 3, SIZES)
        torch.manual_seed(0)
        module = build_module(TINY, method, settings, None, schedule)
        recorder = recorders.CurveRecorder(steps, Rectangle(0.5, 0.5), [WIDE])
        build_trainer(schedule, options, [recorder], validates=False).fit(module, datamodule)
        curves.append(recorder.curve)
    assert "loss" not in curves[0][0]
    each = [point["loss"] for point in curves[0][1:]]
    assert len(set(each)) > 1
    assert_close([point.get("loss") for point in curves[1][1:]], [fmean(each[:3]), fmean(each[3:])], "float32")


def test_scores_after_training_are_made_on_its_device(options, monkeypatch):
    """Lightning moves the model to the CPU when training ends, but batches still go to the device."""
    schedule = Schedule(steps=2)
    datamodule = build_datamodule(TINY, options, 0, 3, SIZES)
    module = build_module(TINY, CE, {"lr": 0.1}, None, schedule)
    trainer = build_trainer(schedule, options, [], validates=False)
    trainer.fit(module, datamodule)
    moves = []
    monkeypatch.setattr(module, "to", lambda device: moves.append(device) or module)
    recorders.raw_scores(module, datamodule.val_dataloader())
    assert moves == [trainer.strategy.root_device]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_runs_all_kinds_of_trials(options, tmp_path):
    experiment = replace(
        TINY, schedule=Schedule(epochs=2), pretrain=Schedule(epochs=1), activation="sigmoid", methods=(CE, STACO)
    )
    store = results_in(tmp_path)
    run_plan(Plan(experiment, num_folds=2), store, replace(options, accelerator="gpu", cache_dir=str(tmp_path)))
    assert {outcome.status for _, outcome in store} == {"finished"}


def test_a_joint_name_sets_all_its_arguments():
    settings = {"lr": 0.25, "alpha+beta": 0.5, "score_activation": "sigmoid"}
    module = build_module(TINY, STACO, settings, (0.25, 0.75), Schedule(steps=1))
    algorithm = module.algorithm
    assert module.score_activation == "sigmoid"
    assert (algorithm.alpha, algorithm.beta, algorithm.min_tpr, algorithm.max_fpr) == (0.5, 0.5, 0.25, 0.75)
    assert module.optimizer_factory(module.parameters()).param_groups[0]["lr"] == 0.25


# ---------------------------------------------------------------- report


@needs_plot
def test_the_report_has_tables_and_figures(finished):
    plan, store, folder = finished
    text = write_report(plan, store, folder, "the command").read_text(encoding="utf-8")
    assert "`the command`" in text
    for rectangle in plan.experiment.rectangles:
        picture = folder / f"curves_{metric_name(rectangle)}.png"
        assert picture.name in text
        assert picture.read_bytes().startswith(b"\x89PNG")
        losses = folder / f"losses_{metric_name(rectangle)}.png"
        assert losses.name in text
        assert losses.read_bytes().startswith(b"\x89PNG")
    with (folder / "table.csv").open(encoding="utf-8") as file:
        table = {(row["min_tpr"], row["method"]): row for row in csv.DictReader(file)}
    assert len(table) == 6
    values = [
        outcome.test["tpauc_tpr50_fpr50"]
        for trial, outcome in everything(store)
        if trial["kind"] == "final" and trial["method"] == "STACO1" and trial["rectangle"] == [0.5, 0.5]
    ]
    row = table["0.5", "STACO1"]
    assert (row["test_mean"], row["runs"]) == (f"{statistics.fmean(values):.5f}", "3")
    assert row["test_std"] == f"{statistics.stdev(values):.5f}"
    assert (row["paper_mean"], row["paper_std"]) == ("0.682", "0.054")
    low, high = float(row["interval_low"]), float(row["interval_high"])
    assert low < values[0] < high


@needs_plot
def test_results_of_earlier_versions_are_still_reported(finished, tmp_path):
    """Their points hold the objective of the rectangle that was trained on, and no loss of the method."""
    plan, store, _ = finished
    old = results_in(tmp_path)
    for key, outcome in store:
        trial = Trial(**json.loads(key))
        kept = ("step", "objective", *map(metric_name, plan.experiment.rectangles))
        old.add(trial, replace(outcome, curve=[{name: p[name] for name in kept} for p in outcome.curve]))
    text = write_report(plan, old, tmp_path, "x").read_text(encoding="utf-8")
    narrow, wide = (training_curves(plan, old, r) for r in plan.experiment.rectangles)
    assert (tmp_path / "curves_tpauc_tpr25_fpr75.png").is_file()
    assert "losses_" not in text
    assert not list(tmp_path.glob("losses_*"))
    # the method that trains on each rectangle has the objective of both, the one that doesn't has that of the first
    having = [
        {m for m, runs in c.items() if all("objective" in p for run in runs for p in run)} for c in (narrow, wide)
    ]
    assert having == [{"CE", "STACO1", "broken"}, {"STACO1"}]
    recorded = training_curves(plan, store, WIDE)
    assert [[p["tpauc"] for p in run] for run in recorded["CE"]] == [[p["tpauc"] for p in run] for run in wide["CE"]]
    assert all("objective" in point for run in recorded["CE"] for point in run)


@needs_plot
def test_runs_with_and_without_losses_share_a_figure(tmp_path):
    older = [{"step": 0.0, "tpauc": 0.2}, {"step": 5.0, "tpauc": 0.3}]
    newer = [{"step": 0.0, "tpauc": 0.2}, {"step": 5.0, "tpauc": 0.4, "loss": 1.5}]
    path = tmp_path / "losses.png"
    assert draw_losses({"A": [older, newer], "B": [older]}, WIDE, "title", path)
    assert path.is_file()


def test_the_table_says_where_the_grid_ended_and_who_is_ahead(finished):
    plan, store, _ = finished
    table = rows(plan, store)
    at_end = replace(table[0], method="CE", mean=0.9, std=None, edges=("lr",))
    behind = replace(table[1], method="STACO1", mean=0.8, edges=())
    text = to_markdown(plan, [at_end, behind])
    assert "| **0.900** |" in text
    assert "no: lr at the edge" in text
    assert "The best STACO (STACO1, 0.800) is below CE (0.900)." in text
    assert "STACO1 has the best mean." in to_markdown(plan, [replace(at_end, mean=0.7), behind])


@needs_plot
def test_unequal_budgets_are_told(options, tmp_path, finished):
    plan, _, folder = finished
    assert "NOT the same budget" in write_report(plan, finished[1], folder, "x").read_text(encoding="utf-8")
    empty = results_in(tmp_path / "none")
    path = write_report(replace(plan, budget=2), empty, tmp_path, "x")
    assert "Every method tries 2 settings per rectangle" in path.read_text(encoding="utf-8")


@needs_plot
def test_epochs_of_unequal_length_are_told(options, tmp_path):
    """Cross-entropy passes over all 80 examples of a fold, 24 at a time; STACO over 53 negatives, 8 or 4 at a time."""
    wide = replace(CE, sizes=(8, 16, 0))
    half = replace(STACO, name="STACO1, half", sizes=(4, 4, 4))
    by_epochs = replace(TINY, methods=(wide, STACO, half), schedule=Schedule(epochs=2, milestones=(1,)))
    plan = Plan(by_epochs, num_folds=3, search_folds=1, budget=1)
    store = results_in(tmp_path)
    run_plan(plan, store, options)
    text = write_report(plan, store, tmp_path, "x").read_text(encoding="utf-8")
    curves = training_curves(plan, store, WIDE)
    alone = write_report(replace(plan, experiment=replace(by_epochs, methods=(wide,))), store, tmp_path, "x")
    assert "all for the same number of epochs, which is NOT the same number of steps: " in text
    told = dict(reversed(part) for part in re.findall(r"(\d+) \(['\"]([^'\"]+)['\"]\)", text))
    assert told == {name: f"{runs[0][-1]['step']:.0f}" for name, runs in curves.items()}
    assert len(set(told.values())) == 3
    assert "all for the same number of epochs. " in alone.read_text(encoding="utf-8")


@needs_plot
def test_epochs_may_be_as_long_as_the_others(options, tmp_path):
    same = replace(CE, sizes=(8, 16, 0), epoch_sizes=SIZES[:2])
    by_epochs = replace(TINY, methods=(same, STACO), schedule=Schedule(epochs=2, milestones=(1,)))
    plan = Plan(by_epochs, num_folds=3, search_folds=1, budget=1)
    store = results_in(tmp_path)
    run_plan(plan, store, options)
    curves = training_curves(plan, store, WIDE)
    text = write_report(plan, store, tmp_path, "x").read_text(encoding="utf-8")
    assert {runs[0][-1]["step"] for runs in curves.values()} == {2 * math.ceil(53 / 8)}
    assert len(curves) == 2
    assert "all for the same number of epochs. " in text


def test_the_axis_of_tpauc_shows_where_curves_end():
    def curves(*ends):
        return {str(k): [[{"step": 0, "tpauc": 0.0}, {"step": 9, "tpauc": end}]] for k, end in enumerate(ends)}

    assert figures._cut(curves(0.75, 0.77)) == pytest.approx(0.71)
    assert figures._cut(curves(0.2, 0.7)) == 0.0
    assert figures._cut({}) == 0.0


@needs_plot
def test_time_per_step(options, tmp_path):
    path = time_methods(TINY, options, tmp_path, steps=2, command="the command")
    text = path.read_text(encoding="utf-8")
    assert (path.parent / "times.png").is_file()
    lines = [line for line in text.splitlines() if line.startswith(("| CE", "| STACO1 ", "| STACO1, two"))]
    assert len(lines) == 3
    assert all(float(line.split("|")[2]) > 0 and float(line.split("|")[3]) > 0 for line in lines)


# ---------------------------------------------------------------- catalog


@pytest.mark.parametrize("grid", ["paper", "tuned"])
def test_every_method_of_the_catalog_takes_its_settings(grid):
    for name in experiment_names():
        for method in find_experiment(name, grid).methods:
            for settings in settings_of(method.grid, budget=3):
                standing = PAPER_SETTINGS.get(method.algorithm, {})
                own = {**standing, **method.fixed, **spread(settings)}
                own = {k: v for k, v in own.items() if k not in ("lr", "score_activation")}
                algorithm = getattr(algorithms, method.algorithm)(**own)
                assert algorithm.needs_dual_negatives == bool(method.sizes[2])


def test_the_runner_trains_as_the_paper_does():
    for name, made in (("STACO", paper_staco), ("SOTA", paper_sota), ("SONX", paper_sonx), ("SOTAs", paper_sotas)):
        assert made.keywords == PAPER_SETTINGS[name], name
    made = stages(find_experiment("ijcnn1").methods[0])
    assert {name: getattr(made, name) for name in PAPER_TRAINING} == PAPER_TRAINING


def test_the_tuned_grids_give_every_method_the_same_budget():
    for name in ("ijcnn1", "higgs", "susy", "moltox21", "molmuv", "nodulemnist3d", "adrenalmnist3d"):
        assert len({len(settings_of(method.grid)) for method in find_experiment(name).methods}) == 1


def test_the_studies_vary_one_thing():
    sizes = {method.sizes[1] for method in find_experiment("molmuv-batch-size").methods}
    gammas = [grid_values(method.grid, "gamma") for method in find_experiment("moltox21-gamma").methods]
    surrogates = {method.fixed["surrogate"] for method in find_experiment("surrogates").methods}
    assert sizes == {16, 64, 256}
    assert gammas == [(300.0,), (500.0,), (1000.0,), (1e7,)]
    assert surrogates == {"squared_hinge", "square", "hinge"}


def test_unknown_names():
    with pytest.raises(ArgumentError, match=r"one of ijcnn1, .*but got 'mnist'"):
        find_experiment("mnist")
    with pytest.raises(ArgumentError, match="'paper' or 'tuned', but got 'best'"):
        find_experiment("ijcnn1", "best")


def test_reported_values():
    assert reported_tpauc("CE", "higgs", Rectangle(0.5, 0.5)) == (0.041, 0.001)
    assert reported_tpauc("STACO", "adrenalmnist3d", WIDE) == (0.780, 0.013)
    assert reported_tpauc("SONX:hinge", "ijcnn1", WIDE) == (0.836, 0.004)
    assert reported_tpauc("SONX:hinge", "susy", WIDE) == (0.723, 0.003)
    assert reported_tpauc("STACO:square", "higgs", WIDE) == (0.511, 0.003)
    assert reported_tpauc("SONX:hinge", "ijcnn1", Rectangle(0.5, 0.5)) is None
    assert reported_tpauc("SONX:hinge", "moltox21", WIDE) is None
    assert reported_tpauc("SONX:logistic", "ijcnn1", WIDE) is None
    assert reported_tpauc("SOTA", "moltox21", WIDE) is None
    assert reported_tpauc("CE", "tiny", WIDE) is None
    assert reported_tpauc(None, "ijcnn1", WIDE) is None


def test_seeds_change_the_batches(options):
    orders = [next(iter(prepared(options, seed).train_dataloader())).index for seed in (0, 0, 1)]
    assert torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])


def prepared(options, seed):
    datamodule = build_datamodule(TINY, options, 0, 3, SIZES, seed)
    datamodule.setup("fit")
    return datamodule
