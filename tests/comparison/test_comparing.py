"""Comparisons from Python and from the command line, on small data with one label and with several."""

import base64
import csv
import functools
import importlib.util
import math
import os
import random
import re
import signal
import sys
import warnings
import xml.etree.ElementTree as ElementTree

import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics import roc_auc_score

import lightning_tpauc
from lightning_tpauc import PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import SOTA, STACO, FullBatch
from lightning_tpauc.cli import main
from lightning_tpauc.comparison import Method, compare, results, training
from lightning_tpauc.errors import ArgumentError, DataError, UnsupportedError
from tests.helpers.launching import finish, start
from tests.helpers.paths import ROOT
from tests.helpers.problems import bare_trainer
from tests.reference.tpauc import naive_tpauc

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"),
]
forks = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")

TWO = ["cross-entropy", "STACO"]
SHORT = {"max_steps": 12, "max_epochs": -1, "check_val_every_n_epoch": None, "val_check_interval": 4}
CORNER, WIDE = (0.5, 0.5), (0.25, 0.75)
#: ``liver`` has a rectangle of its own, ``rare`` few positives, and ``skin`` was not measured in the test set.
NAMES, RECTANGLES = ("liver", "lung", "rare", "skin"), ((0.5, 0.2), CORNER, CORNER, CORNER)
DEMANDS = {"tasks": {"liver": {"max_fpr": 0.2, "weight": 2.0}}}


@pytest.fixture(scope="module", autouse=True)
def _few_resamples():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "_DRAWS", 0)  # 200 in place of 1000
        yield


def part(seed, count=120):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 4 == 0
    return torch.randn(count, 3, generator=generator) + 0.8 * y[:, None], y


def part_of_labels(seed, count=240, skin=True):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 5, generator=generator)
    y = x[:, :4] + torch.randn(count, 4, generator=generator) > torch.tensor([1.0, 1.0, 2.6, 1.0])
    y = y.float()
    y[torch.rand(count, 4, generator=generator) < 0.2] = math.nan
    if not skin:
        y[:, 3] = math.nan
    return x, pd.DataFrame(y.numpy(), columns=list(NAMES))


def problem(seed=0, **options):
    given = {"val_dataset": part(1), "test_dataset": part(2), **options}
    return PosNegDataModule(given.pop("train_dataset", part(0)), num_pos=8, num_neg=16, seed=seed, **given)


def problem_of_labels(seed=0, **options):
    given = {"val_dataset": part_of_labels(1), "test_dataset": part_of_labels(2, skin=False), **options}
    return PosNegDataModule(part_of_labels(0), num_pos=16, num_neg=16, seed=seed, **given)


def model():
    return torch.nn.Linear(3, 1)


def run(folder, model=model, datamodule=None, **options):
    given = {"methods": TWO, "seeds": 1, "accelerator": "cpu", **SHORT, **options}
    return compare(model, problem() if datamodule is None else datamodule, folder, **given)


def run_labels(folder, **options):
    given = {"model": lambda: torch.nn.Linear(5, 4), "datamodule": problem_of_labels(), "methods": None}
    return run(folder, **{**given, "module": DEMANDS, **options})


both = pytest.mark.parametrize("run", [run, run_labels])


def cells(folder):
    """What is stored of each training, by method, factor of the learning rate, seed and fold."""
    found = [torch.load(path, weights_only=True) for path in sorted((folder / "cells").glob("*.pt"))]
    return {tuple(outcome.pop("cell")): outcome for outcome in found}


def table(folder, name):
    with (folder / f"{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def without_times(folder):
    """All that a comparison writes, but what clocks say."""
    found = {}
    for cell, outcome in cells(folder).items():
        outcome.pop("seconds")
        weights = {name: weight.tolist() for name, weight in outcome.pop("weights").items()}
        found[cell] = {**outcome, **weights, "scores": outcome["scores"].tolist(), "target": outcome["target"].tolist()}
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in table(folder, "runs")]
    return found, rows, (folder / "roc.png").read_bytes()


def best_factors(folder):
    """By method, the factor with the best mean area on validation data."""
    means = {}
    for (method, factor, _, _), outcome in cells(folder).items():
        means.setdefault(method, {}).setdefault(factor, []).append(outcome["validation"][0])
    return {method: max(own, key=lambda factor: np.mean(own[factor])) for method, own in means.items()}


STARTS: list = []


class Noted(Callback):
    """The first weights of each training; a comparison copies callbacks."""

    def on_train_start(self, trainer, pl_module):
        STARTS.append(tuple(pl_module.backbone.weight.flatten().tolist()))


# ---------------------------------------------------------------- what is compared


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    return folder, run(folder, seeds=2, trials=2, rectangles=[WIDE])


@pytest.fixture(scope="module")
def finished_labels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labels")
    return folder, run_labels(folder, seeds=2, trials=2, rectangles=[WIDE])


def test_files_hold_the_values_of_the_stored_scores(finished):
    folder, report = finished
    rows, means = table(folder, "runs"), {}
    assert [(row["method"], row["run"]) for row in rows] == [(m, k) for m in TWO for k in "01"]
    for row in rows:
        scored = report.results.runs[row["method"]][int(row["run"])]
        assert torch.equal(scored.target[:, 0], part(2)[1].long())
        pos, neg = (scored.scores[scored.target == label].double().numpy() for label in (1, 0))
        assert float(row["tpauc"]) == pytest.approx(naive_tpauc(pos, neg, *CORNER), abs=1e-5)
        assert float(row["tpauc_0.25_0.75"]) == pytest.approx(naive_tpauc(pos, neg, *WIDE), abs=1e-5)
        assert float(row["auroc"]) == pytest.approx(roc_auc_score(scored.target, scored.scores), abs=1e-5)
        means.setdefault(row["method"], []).append(float(row["tpauc"]))
    found = report.results.differences["STACO"][0]
    assert found.estimate == pytest.approx(np.mean(means["STACO"]) - np.mean(means[TWO[0]]), abs=2e-5)
    assert report.verdicts["STACO"] in report.text


def test_test_scores_are_those_of_the_weights_that_validated_best(finished):
    folder, report = finished
    best = best_factors(folder)
    for (method, factor, seed, _), outcome in cells(folder).items():
        tpauc, auroc = outcome["validation"]
        assert tpauc == pytest.approx(max(point["tpauc"] for point in outcome["curve"]), abs=1e-6)
        weight, bias = outcome["weights"]["backbone.weight"], outcome["weights"]["backbone.bias"]
        assert auroc == pytest.approx(roc_auc_score(part(1)[1], part(1)[0] @ weight[0] + bias), abs=1e-6)
        if factor == best[method]:
            scored = report.results.runs[method][seed]
            torch.testing.assert_close(scored.scores, part(2)[0] @ weight.T + bias)


def test_all_methods_start_alike_and_see_as_many_examples(tmp_path):
    STARTS.clear()
    report = run(tmp_path, seeds=2, trials=2, callbacks=[Noted()])
    assert [STARTS.count(start) for start in dict.fromkeys(STARTS)] == [4, 4]
    assert {run.examples for runs in report.results.runs.values() for run in runs} == {12 * 24}
    found = cells(tmp_path).values()
    assert {outcome["optimizer"] for outcome in found} == {"DampedAdam, lr 0.01", "DampedAdam, lr 0.0316"}
    assert {tuple(point["step"] for point in outcome["curve"]) for outcome in found} == {(4, 8, 12)}


def test_a_method_that_reads_more_negatives_takes_fewer_steps(tmp_path):
    two = Method("two batches", lambda *rectangle: STACO(*rectangle, share_negatives=False))
    report = run(tmp_path, methods=["STACO", two], datamodule=problem(num_dual_neg=24))
    last = {cell[0]: outcome["curve"][-1]["step"] for cell, outcome in cells(tmp_path).items()}
    assert last == {"STACO": 12, "two batches": 6}
    assert {run.examples for runs in report.results.runs.values() for run in runs} == {288}


def test_a_network_that_was_made_is_where_all_methods_start_and_stays_as_it_is(tmp_path):
    net = model()
    before = net.weight.detach().clone()
    STARTS.clear()
    run(tmp_path / "itself", model=net, callbacks=[Noted()])
    run(tmp_path / "returned", model=lambda: net, callbacks=[Noted()])
    assert set(STARTS) == {tuple(before.flatten().tolist())}
    assert torch.equal(net.weight, before)


def test_seeds_of_a_trained_network_differ_by_their_batches(tmp_path):
    report = run(tmp_path, model=model(), seeds=2)
    assert not torch.equal(*(scored.scores for scored in report.results.runs["STACO"]))
    assert "- All seeds start from the same weights: they differ by their batches alone." in report.text.splitlines()


class CheckpointCounter(Callback):
    """A callback of one's own, whose name says Checkpoint."""

    def __init__(self, folder):
        self.folder = folder

    def on_train_batch_end(self, *args):
        with (self.folder / "batches").open("a") as file:
            file.write(".")


def test_only_callbacks_that_end_save_or_show_a_training_are_left_out(tmp_path):
    given = [EarlyStopping("val/tpauc", patience=0, mode="min"), ModelCheckpoint(), CheckpointCounter(tmp_path)]
    options = {"callbacks": given, "max_time": {"seconds": 1}, "devices": 2, "precision": "bf16-true"}
    report = run(tmp_path, model=lambda: model().bfloat16(), **options)
    assert "Without EarlyStopping, ModelCheckpoint: " in report.text
    assert (tmp_path / "batches").read_text() == "." * 24


class Own(TPAUCModule):
    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.net = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x)

    def training_step(self, *args):
        super().training_step(*args)


def test_a_module_of_ones_own_whose_step_returns_nothing(tmp_path):
    sgd = functools.partial(torch.optim.SGD, lr=0.25)
    report = run(tmp_path, model=functools.partial(Own, 5), module={"optimizer": sgd}, trials=2, seeds=2)
    assert {outcome["optimizer"] for outcome in cells(tmp_path).values()} == {"SGD, lr 0.25", "SGD, lr 0.791"}
    assert {run.optimizer for runs in report.results.runs.values() for run in runs} <= {"SGD, lr 0.25", "SGD, lr 0.791"}


def test_no_verdict_on_a_method_that_kept_its_first_weights(tmp_path):
    net = model()
    with torch.no_grad():
        net.weight.copy_(torch.ones(1, 3))  # the best direction; training starts there and is pushed away
    away = Method("away", STACO, {"optimizer": functools.partial(torch.optim.SGD, lr=10.0, maximize=True)})
    report = run(tmp_path, model=net, methods=["STACO", away, "SOTAs"])
    runs = report.results.runs
    assert runs["away"][0].kept_start
    words = r"open \(.*\): .*away never validated better than (its|their) first weights"
    assert re.fullmatch(words, report.verdicts["away"])
    for name, verdict in report.verdicts.items():
        assert verdict.startswith("open") == (runs["STACO"][0].kept_start or runs[name][0].kept_start)


def test_a_method_that_diverges_is_a_row_and_not_the_end(tmp_path):
    wild = Method("wild", STACO, {"optimizer": functools.partial(torch.optim.SGD, lr=1e38)})
    report = run(tmp_path, methods=["cross-entropy", wild])
    assert report.results.failed["wild"].startswith(("Not finite", "Diverged"))
    assert "wild failed: " in report.text
    assert report.verdicts == {}
    assert {row["method"] for row in table(tmp_path, "runs")} == {"cross-entropy"}
    assert "wild" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_nothing_else_in_the_process_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "3")
    monkeypatch.delenv("PL_SEED_WORKERS", raising=False)
    lightning_tpauc.compare(model, problem(), tmp_path, methods=TWO, accelerator="cpu", max_steps=1)  # imports

    def state():
        numbers = torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()
        return numbers, dict(os.environ), list(warnings.filters)

    before = state()
    run(tmp_path, seeds=2)
    assert state() == before


# ---------------------------------------------------------------- going on


KILLED = """
import os, signal, sys
from pathlib import Path
from lightning_tpauc.comparison import training
from tests.comparison.test_comparing import {run}

validations = []
record = training._Recorder.on_validation_end

def count(self, *args):
    validations.append(0)
    if len(validations) == 12:  # each training has five, one of them before its first step: amid the third training
        os.kill(os.getpid(), signal.SIGKILL)
    record(self, *args)

training._Recorder.on_validation_end = count
{run}(Path(sys.argv[1]), methods=["cross-entropy", "STACO"], seeds=2)
"""


@both
def test_a_killed_comparison_goes_on_to_the_same_end(tmp_path, run):
    killed, straight = tmp_path / "killed", tmp_path / "straight"
    process = start(["python", "-c", KILLED.format(run=run.__name__), str(killed)], ROOT)
    output = finish(process)
    assert process.returncode == 128 + signal.SIGKILL, output
    assert len(cells(killed)) == 2
    before = {path: path.stat().st_mtime_ns for path in (killed / "cells").glob("*.pt")}
    run(killed, methods=TWO, seeds=2)
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    run(straight, methods=TWO, seeds=2)
    assert without_times(killed) == without_times(straight)


@pytest.fixture
def trained(monkeypatch):
    """(method, learning rate, seed) of each training."""
    noted, train_cell = [], training.train_cell

    def note(setup, method, cell, *args, **kwargs):
        noted.append((method.name, cell.factor, cell.run.seed))
        return train_cell(setup, method, cell, *args, **kwargs)

    monkeypatch.setattr(training, "train_cell", note)
    return noted


def test_what_has_finished_is_not_trained_again(tmp_path, trained):
    first = run(tmp_path)
    assert len(trained) == 2
    assert run(tmp_path, datamodule=problem(train_dataset=part(0))).text == first.text
    assert len(trained) == 2
    run(tmp_path, trials=2)
    assert [factor for _, factor, _ in trained[2:]] == pytest.approx([10**0.5] * 2)
    run(tmp_path, seeds=2)
    assert [seed for _, _, seed in trained[4:]] == [1, 1]
    run(tmp_path, methods=[*TWO, "SOTAs"])
    assert [name for name, _, _ in trained[6:]] == ["SOTAs"]


def changed(x, y):
    """One number of one row is another one."""
    x = x.clone()
    x[50, 1] += 1
    return x, y


def hidden(layer):
    def make():
        return torch.nn.Sequential(torch.nn.Linear(3, 4), layer, torch.nn.Linear(4, 1))

    return make


def sgd(lr):
    return lambda parameters: torch.optim.SGD(parameters, lr)


NOISE = torch.randn(120, 3, generator=torch.Generator().manual_seed(9))
OTHERS = {
    "features of training": [{"datamodule": problem()}, {"datamodule": problem(train_dataset=(NOISE, part(0)[1]))}],
    "one number of the test": [{"datamodule": problem()}, {"datamodule": problem(test_dataset=changed(*part(2)))}],
    "weights of examples": [
        {"datamodule": problem(sample_weight=weight)} for weight in (torch.ones(120), torch.ones(120) + part(0)[1])
    ],
    "layer": [{"model": hidden(torch.nn.ReLU())}, {"model": hidden(torch.nn.Tanh())}],
    "optimizer": [{"module": {"optimizer": sgd(lr)}} for lr in (0.1, 0.2)],
    "optimizer of a partial": [{"module": {"optimizer": functools.partial(torch.optim.SGD, lr=r)}} for r in (0.1, 0.2)],
    "callback": [{"callbacks": [StageCallback(every_n_steps=steps)]} for steps in (3, 4)],
    "rectangle": [{}, {"min_tpr": 0.25}],
    "length": [{}, {"max_steps": 8}],
    "Trainer": [{}, {"limit_val_batches": 1}],
    "module": [{}, {"module": {"gradient_clip_val": 0.01}}],
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_differs_is_trained_anew(tmp_path, trained, name):
    one, other = OTHERS[name]
    run(tmp_path, **one)
    run(tmp_path, **one)
    assert len(trained) == 2
    stale = run(tmp_path, **other)
    assert len(trained) == 4
    report = run(tmp_path / "fresh", **other)
    for method, values in report.results.values.items():
        assert torch.equal(stale.results.values[method], values)


def test_another_source_of_a_network_is_trained_anew(tmp_path, trained):
    for factor in (2, 2, 3):
        forward = f"    def forward(self, x): return {factor} * super().forward(x)\n"
        (tmp_path / "nets.py").write_text(f"import torch\nclass Net(torch.nn.Linear):\n{forward}")
        spec = importlib.util.spec_from_file_location("nets", tmp_path / "nets.py")
        sys.modules["nets"] = nets = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(nets)
        run(tmp_path, model=lambda made=nets.Net: made(3, 1))
    del sys.modules["nets"]
    assert len(trained) == 4


# ---------------------------------------------------------------- side by side


@forks
@both
def test_trainings_side_by_side_give_what_one_after_the_other_does(tmp_path, run):
    options = {"seeds": 2, "methods": [*TWO, "SOTAs"]}
    run(tmp_path / "one", **options)
    run(tmp_path / "three", processes=3, **options)
    assert without_times(tmp_path / "three") == without_times(tmp_path / "one")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "three" / "cells").glob("*.pt")}
    run(tmp_path / "three", processes=2, **options)
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("name", ["val_dataset", "test_dataset"])
@pytest.mark.parametrize("value", [0, 1])
def test_a_part_of_one_class_is_refused_before_any_training(tmp_path, name, value):
    x, y = part(1)
    words = f"the {'test' if name == 'test_dataset' else 'validation'} set has examples of one class alone"
    with pytest.raises(DataError, match=words):
        run(tmp_path, datamodule=problem(**{name: (x, torch.full_like(y, value))}))
    x, y = part_of_labels(3)
    with pytest.raises(DataError, match=words):
        run_labels(tmp_path, datamodule=problem_of_labels(**{name: (x, y.where(y != 1))}))
    assert not (tmp_path / "cells").exists()


class Plain(LightningDataModule):
    def val_dataloader(self):
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*part(1)))


REFUSED = {
    "Validation data choose, but there are none: pass `val_dataset`": {"datamodule": problem(val_dataset=None)},
    "`folds` needs a data module for each": {"folds": 2},
    "'max_step'": {"max_step": 3},
    "Pass `model` as `partial.TPAUCModule, ": {"model": TPAUCModule(model())},
    "Expected `datamodule` to be a PosNegDataModule, but got 3": {"datamodule": 3},
    "Expected `datamodule` to be a PosNegDataModule, but got <.*Plain": {"datamodule": Plain()},
    "`seeds`": {"seeds": 0},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cant_be_compared_is_one_line(tmp_path, words):
    with pytest.raises((ArgumentError, DataError, TypeError), match=words):
        run(tmp_path, **REFUSED[words])


class Makes(TPAUCModule):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("options", [{}, {"module": {"optimizer": functools.partial(torch.optim.SGD, lr=0.3)}}])
def test_an_optimizer_that_the_module_makes_has_no_rate_to_try(tmp_path, monkeypatch, options):
    monkeypatch.setattr(Makes, "__module__", "lightning_of_ones_own.models")
    mine = functools.partial(Makes, model())
    assert "SGD" in run(tmp_path, model=mine, **options).text
    with pytest.raises(UnsupportedError, match="Makes makes its own in `configure_optimizers`"):
        run(tmp_path, model=mine, trials=2, **options)


@pytest.mark.parametrize("given", ["PAUCI", "AUCM", "SONX", Method("FullBatch", FullBatch)])
def test_a_method_of_one_label_is_refused_by_its_name(tmp_path, given):
    name = getattr(given, "name", given)
    words = rf"^{name} of `methods` can train one label only, but the data have several: take others"
    with pytest.raises(UnsupportedError, match=words):
        run_labels(tmp_path, methods=[*TWO, given])


# ---------------------------------------------------------------- several labels


@pytest.mark.filterwarnings("ignore:test/tpauc of skin is nan")
def test_values_of_labels_are_what_the_module_reports(finished_labels):
    """The weights of each training, tested by a module of their own: means, and each label."""
    folder, report = finished_labels
    rows, best, found = table(folder, "runs"), best_factors(folder), report.results
    assert list(found.values) == ["cross-entropy", "balanced cross-entropy", "cross-entropy without average", "STACO"]
    assert len(rows) == 4 * 2 * 4
    names = ["tpauc", "tpauc_tpr25_fpr75", "auroc", "", "tpr_at_max_fpr", "fpr_at_min_tpr"]
    for (method, factor, seed, _), outcome in cells(folder).items():
        if factor != best[method]:
            continue
        assert found.runs[method][0].optimizer == f"DampedAdam, lr {0.01 * factor:.3g}"
        module = TPAUCModule(torch.nn.Linear(5, 4), STACO(*CORNER), rectangles=[WIDE], **DEMANDS)
        module.load_state_dict(outcome["weights"])
        (values,) = bare_trainer().test(module, problem_of_labels(), verbose=False)
        means = found.values[method][seed].nanmean(0).tolist()
        for name, mean in zip(names, means, strict=True):
            if name:
                assert mean == pytest.approx(values[f"test/{name}"], abs=1e-6)
        own = {row["label"]: row for row in rows if row["method"] == method and row["run"] == str(seed)}
        for name, rectangle in zip(NAMES[:3], RECTANGLES, strict=False):
            assert float(own[name]["tpauc"]) == pytest.approx(values[f"test/tpauc/{name}"], abs=2e-5)
            assert (float(own[name]["min_tpr"]), float(own[name]["max_fpr"])) == rectangle
        assert own["skin"]["tpauc"] == ""


def test_the_report_says_what_the_means_are_of(finished_labels):
    _, report = finished_labels
    assert report.text.startswith("Mean of 3 labels, TPR >= 0.5 and FPR <= 0.5 on test data, 2 seeds\n")
    for line in (
        "Without PAUCI, for one label only.",
        "No value, since a class has no test example: skin. They count in no mean.",
        "Trained and measured in a rectangle (min_tpr, max_fpr) of their own: liver (0.5, 0.2).",
    ):
        assert f"- {line}" in report.text.splitlines()
    assert re.search(r"- Fewer than 30 positives or negatives: .*rare", report.text)
    assert f"STACO against {report.results.baseline}, mean of 3 labels, TPR >= 0.5, FPR <= 0.5: " in report.text
    found = report.results
    means = {name: np.mean([run.validation[0] for run in found.runs[name]]) for name in found.runs if name != "STACO"}
    assert found.baseline == max(means, key=means.get)
    assert f"- The baseline, {found.baseline}, validates best of cross-entropy, balanced cross-entropy, " in report.text
    shown = [re.split("  +", line) for line in report.text.splitlines()]
    tables = [row for row in shown if len(row) > 4]
    assert [row[0] for row in tables] == ["method", *report.results.runs, "label", *NAMES]
    assert tables[-1][1:5] == ["(0.5, 0.5)", "0", "0", "-"]


def test_folds_and_methods_of_ones_own(tmp_path):
    x, y = part_of_labels(0)

    def data(seed, fold, num_folds):
        return PosNegDataModule((x, y), num_pos=8, num_neg=8, seed=seed, fold=fold, num_folds=num_folds)

    methods = [Method("SOTA", SOTA), "SOTAs"]
    report = run_labels(tmp_path, datamodule=data, folds=2, seeds=2, methods=methods, module={}, max_steps=4)
    assert report.results.part == "validation"
    assert "2 folds and 2 seeds" in report.text
    assert "There is no test set" in report.text
    assert report.results.baseline == "SOTA"
    counts = [(label.num_positives, label.num_negatives) for label in report.results.labels]
    assert counts == [(int((y[name] == 1).sum()), int((y[name] == 0).sum())) for name in NAMES]


# ---------------------------------------------------------------- the page


def test_the_page_holds_everything_and_is_well_formed(finished):
    folder, report = finished
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>"))  # noqa: S314  # our own page
    assert not re.findall(r"https?://|<script|<link|@import|url\(", text)
    pictures = [image.get("src") for image in page.iter("img")]
    kinds = [base64.b64decode(source.removeprefix("data:image/png;base64,"))[:8] for source in pictures]
    assert kinds == [b"\x89PNG\r\n\x1a\n"] * 2
    assert [shown.text for shown in page.iter("pre")] == [report.text]
    shown = [re.split("  +", line) for line in report.text.splitlines()[2:5]]
    assert [row[0] for row in shown] == ["method", *TWO]
    assert {len(row) for row in shown} == {len(shown[0])}


# ---------------------------------------------------------------- models from elsewhere


def write_scores(path, scores):
    rows = torch.randperm(len(scores), generator=torch.Generator().manual_seed(0)).tolist()
    path.write_text("example_id,score\n" + "".join(f"{k},{scores[k]!r}\n" for k in rows))
    return path


def test_classifiers_and_files_stand_in_the_table(tmp_path):
    forest, linear = RandomForestClassifier(9), RidgeClassifier()
    (x, y), (new_x, _) = part(0), part(2)
    theirs = (new_x[:, 0] - new_x[:, 1]).tolist()
    others = {"forest": forest, "ridge": linear, "theirs": write_scores(tmp_path / "scores.csv", theirs)}
    report = run(tmp_path / "found", others=others, seeds=2, methods=["cross-entropy", "STACO"])
    rows = torch.cat([torch.nonzero(y == label) for label in (1, 0)]).squeeze(1)
    x, y = x[rows].numpy(), y[rows].long().numpy()
    expected = {"theirs": [theirs] * 2, "ridge": [linear.fit(x, y).decision_function(new_x.numpy())] * 2}
    expected["forest"] = [
        RandomForestClassifier(9, random_state=seed).fit(x, y).predict_proba(new_x.numpy())[:, 1] for seed in (0, 1)
    ]
    for name, scores in expected.items():
        of_runs = report.results.runs[name]
        for own, wanted in zip(of_runs, scores, strict=True):
            assert own.scores[:, 0].tolist() == pytest.approx(list(wanted))
        found, ours = report.results.beside[name], report.results.values
        areas = [float(ours[method][:, 0, 0].mean()) for method in ("STACO", name)]
        assert found.estimate == pytest.approx(areas[0] - areas[1])
        assert f"STACO against {name}, TPR >= 0.5, FPR <= 0.5: {report.results.verdict_beside(name)}" in report.text
    assert set(report.verdicts) == {"STACO", *others}


def test_intervals_draw_whole_groups(tmp_path):
    """Rows that are there eight times count once."""
    x, y = part(2, count=48)
    table = {f"x{k}": x[:, k].repeat(8).numpy() for k in range(3)}
    frame = pd.DataFrame({**table, "label": y.repeat(8).numpy(), "patient": np.tile(np.arange(48), 8)})
    small = pd.DataFrame({**{f"x{k}": part(0)[0][:, k].numpy() for k in range(3)}, "label": part(0)[1].numpy()})
    small["patient"] = np.arange(len(small))
    widths = {}
    for groups in (None, "patient"):
        data = PosNegDataModule(
            small if groups else small.drop(columns="patient"),
            test_dataset=frame if groups else frame.drop(columns="patient"),
            val_fraction=0.3, targets="label", groups=groups, num_pos=8, num_neg=16,
        )  # fmt: skip
        found = run(tmp_path / str(groups), datamodule=data).results.intervals["STACO"]
        widths[groups] = found.upper - found.lower
    assert widths["patient"] > 2 * widths[None]


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"a": 3}, "`others` to be classifiers or paths .* 'a': 3"),
        ({"STACO": RidgeClassifier()}, "under names that no method has, but got 'STACO'"),
        ({"a": "no.csv"}, "'no.csv' of `others` to be a CSV file with columns .* FileNotFoundError"),
        ({"a": "short.csv"}, "`example_id`, 0 to 119 once each, and `score`, but found ValueError.'119 rows"),
        ({"a": "long.csv"}, "found ValueError.'300 rows"),
        ({"a": "twice.csv"}, "found ValueError.'120 rows"),
    ],
)
def test_other_models_that_cant_be_compared_are_refused(tmp_cwd, others, message):
    write_scores(tmp_cwd / "short.csv", [0.5] * 119)
    write_scores(tmp_cwd / "long.csv", [0.5] * 300)
    (tmp_cwd / "twice.csv").write_text((tmp_cwd / "short.csv").read_text() + "7,0.9\n")
    with pytest.raises(ArgumentError, match=message):
        run(tmp_cwd / "found", others=others, max_steps=1)


def test_other_models_take_tables_with_one_label(tmp_path):
    with pytest.raises(UnsupportedError, match=r"`others` takes tables, .* with one label"):
        run_labels(tmp_path, others={"ridge": RidgeClassifier()}, max_steps=1)


# ---------------------------------------------------------------- the command


@pytest.fixture
def config(tmp_path):
    text = (ROOT / "configs" / "quickstart.yaml").read_text(encoding="utf-8")
    path = tmp_path / "my.yaml"
    path.write_text(text.replace("max_epochs: 40", "max_epochs: 2"))
    return path


def test_the_command(config, tmp_path, capsys):
    words = ["compare", "--config", str(config), "--folder", str(tmp_path / "found"), "--methods", str(TWO)]
    words += ["--seeds", "1"]

    def count():
        return len(list((tmp_path / "found" / "cells").iterdir()))

    main([*words, "--model.rectangles", "[[0.25, 0.75]]"])
    printed = capsys.readouterr().out
    assert (tmp_path / "found" / "report.txt").read_text().strip() in printed
    assert "report.html shows the curves" in printed
    assert "STACO against cross-entropy, TPR >= 0.25, FPR <= 0.75: " in printed
    assert "Without ModelCheckpoint" in printed
    assert {cell[0] for cell in cells(tmp_path / "found")} == set(TWO)
    assert not (tmp_path / "lightning_logs").exists()
    main([*words, "--model.rectangles", "[[0.25, 0.75]]"])  # nothing is left to do
    assert capsys.readouterr().out == printed
    given = ["--model.rectangles", "[[0.25, 0.75]]", "--others"]
    main([*words, *given, f'{{"theirs": "{write_scores(tmp_path / "theirs.csv", [0.5] * 450)}"}}'])
    assert "STACO against theirs, TPR >= 0.5, FPR <= 0.5: provisional (" in capsys.readouterr().out
    main([*words, "--data.positive_digit", "3"])
    assert count() == 4
    for rate in ("0.1", "0.2", "0.2"):
        main([*words, "--model.optimizer", "SGD", "--model.optimizer.lr", rate])
    assert count() == 8
    main([*words[:-4], "--methods", "[cross-entropy, balanced cross-entropy]", "--folds", "2", "--seeds", "2"])
    assert "2 folds and 2 seeds" in capsys.readouterr().out


def test_the_command_says_what_it_cant_do(config, tmp_path):
    words = ["compare", "--config", str(config), "--folder", str(tmp_path / "found")]
    for more, message in (
        (["--methods", "[STACO, STACO4]"], "names of .*cross-entropy.*but got 'STACO4'"),
        (["--trials", "0"], "`trials`"),
        (["--ckpt_path", "some.ckpt"], "takes no `ckpt_path`|some.ckpt"),
        (["--data.val_fraction", "null"], "there are none"),
        (["--trainer.max_epochs", "-1"], "`max_epochs` or `max_steps`"),
    ):
        with pytest.raises(SystemExit, match=message):
            main([*words, *more])


class Fixed(PosNegDataModule):
    """Takes nothing."""

    def __init__(self):
        super().__init__(part_of_labels(0), part_of_labels(1), part_of_labels(2, skin=False), num_pos=16, num_neg=16)


def test_the_command_takes_data_and_models_of_ones_own(tmp_path, capsys):
    words = ["compare", "--model", "TPAUCModule", "--model.backbone", "lightning_tpauc.models.Linear"]
    words += ["--model.backbone.num_features", "5", "--model.backbone.num_labels", "4"]
    words += ["--data", f"{__name__}.Fixed", "--trainer.max_steps", "4", "--trainer.accelerator", "cpu"]
    words += ["--model.tasks", '{"liver": {"max_fpr": 0.2}}', "--folder", str(tmp_path), "--seeds", "2"]
    main(words)
    shown = capsys.readouterr().out
    assert "2 seeds" in shown
    assert "Without PAUCI, for one label only." in shown
    assert "liver (0.5, 0.2)" in shown
    with pytest.raises(SystemExit, match=r"`folds` needs data that can be cut, but Fixed takes no `num_folds`"):
        main([*words, "--folds", "2"])
