"""The runner of the paper's experiments on a tiny one: search, choice, resuming, tables, figures."""

import csv
import math
import statistics
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from examples.paper import trial as trials
from examples.paper.catalog import Experiment, Schedule, experiments
from examples.paper.methods import Method, settings_of
from examples.paper.report import rows, write_report
from examples.paper.runner import Plan, Results, choose, run_plan
from examples.paper.trial import Options, build_datamodule, build_module, build_trainer, run_trial
from lightning_tpauc.metrics.reporting import Rectangle, metric_name
from tests.helpers.tolerances import assert_close
from tests.reference.tpauc import naive_tpauc

pytestmark = pytest.mark.slow


SIZES = (4, 8, 0)
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
    store = Results(folder)
    run_plan(plan, store, options)
    return plan, store, folder


# ---------------------------------------------------------------- search and choice


def test_every_setting_is_searched_and_the_best_one_reported(finished):
    _, store, _ = finished
    found = list(store)
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
    for trial, outcome in list(finished[1]):
        assert bool(outcome.test) == bool(outcome.curve) == (trial["kind"] == "final")


def test_a_setting_that_becomes_infinite_fails_and_is_never_chosen(finished):
    plan, store, _ = finished
    failed = [(trial, outcome) for trial, outcome in list(store) if outcome.status == "failed"]
    assert {trial["settings"]["lr"] for trial, _ in failed} == {1e30}
    assert all(outcome.message.startswith("Not finite") for _, outcome in failed)
    assert choose(plan, BROKEN, Rectangle(0.5, 0.5), store) == {"lr": 0.1}
    assert [row.failed for row in rows(plan, store) if row.method == "broken"] == [1, 1]


# ---------------------------------------------------------------- resuming


def counted(calls, stop_at=None):
    def run(experiment, method, trial, num_folds, options):
        if stop_at is not None and len(calls) == stop_at:
            raise KeyboardInterrupt
        calls.append(trial.digest)
        return run_trial(experiment, method, trial, num_folds, options)

    return run


def test_a_run_that_was_stopped_goes_on_without_repeating(options, tmp_path):
    plan, calls = Plan(TINY, num_folds=2), []
    store = Results(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_plan(plan, store, options, run=counted(calls, stop_at=5))
    assert len(calls) == 5
    store = Results(tmp_path)
    run_plan(plan, store, options, run=counted(calls))
    assert len(calls) == len(set(calls)) == len(list(store))
    before = len(calls)
    run_plan(plan, store, options, run=counted(calls))
    assert len(calls) == before


# ---------------------------------------------------------------- measurements


def test_curves_end_at_the_solution(options):
    schedule = Schedule(steps=8)
    datamodule = build_datamodule(TINY, options, 0, 3, SIZES)
    module = build_module(TINY, STACO, {"lr": 0.1, "alpha+beta": 0.1}, (0.5, 0.5), schedule)
    recorder = trials.CurveRecorder([0, 8], [WIDE])
    build_trainer(schedule, options, [recorder], validates=False).fit(module, datamodule)
    assert [point["step"] for point in recorder.curve] == [0, 8]
    pos, neg = (trials.raw_scores(module, part)[0] for part in datamodule.scoring_dataloaders())
    expected = naive_tpauc(pos.double().numpy(), neg.double().numpy(), *WIDE)
    assert_close(recorder.curve[-1][metric_name(WIDE)], float(expected), "float32")
    expected = naive_objective(pos.double().tolist(), neg.double().tolist(), 0.75, 0.75)
    assert_close(recorder.curve[-1][trials.objective_name(WIDE)], expected, "float32")


def naive_objective(pos, neg, theta0, theta1):
    """Mean squared hinge over the lowest share theta0 of the positives and the highest theta1 of the negatives."""
    lowest = sorted(pos)[: math.floor(theta0 * len(pos) + 1e-9)]
    highest = sorted(neg, reverse=True)[: math.floor(theta1 * len(neg) + 1e-9)]
    losses = [max(0.5 + n - p, 0.0) ** 2 for p in lowest for n in highest]
    return sum(losses) / len(losses)


# ---------------------------------------------------------------- report


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
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
        for trial, outcome in list(store)
        if trial["kind"] == "final" and trial["method"] == "STACO1" and trial["rectangle"] == [0.5, 0.5]
    ]
    row = table["0.5", "STACO1"]
    assert (row["test_mean"], row["runs"]) == (f"{statistics.fmean(values):.5f}", "3")
    assert row["test_std"] == f"{statistics.stdev(values):.5f}"
    assert (row["paper_mean"], row["paper_std"]) == ("0.682", "0.054")
    low, high = float(row["interval_low"]), float(row["interval_high"])
    assert low < values[0] < high


# ---------------------------------------------------------------- catalog


def test_the_tuned_grids_give_every_method_the_same_budget():
    for name in ("ijcnn1", "higgs", "susy", "moltox21", "molmuv", "nodulemnist3d", "adrenalmnist3d"):
        assert len({len(settings_of(method.grid)) for method in experiments()[name].methods}) == 1
