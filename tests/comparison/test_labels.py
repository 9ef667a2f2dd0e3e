"""Comparisons on several labels: what the files hold, going on, side by side, what is refused."""

import csv
import functools
import math
import re
import xml.etree.ElementTree as ElementTree
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch import Trainer

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import SOTA, STACO, CrossEntropy, FullBatch
from lightning_tpauc.cli import main
from lightning_tpauc.comparison import Method, compare, comparing, training
from lightning_tpauc.comparison.notes import notes_of, title_of
from lightning_tpauc.comparison.pictures import draw_roc_of_labels
from lightning_tpauc.comparison.plan import Outcome, Run, examples_per_step
from lightning_tpauc.comparison.report import write_report
from lightning_tpauc.comparison.resampling import Evaluated
from lightning_tpauc.comparison.results import Difference, LabelResults, Results, Row, evaluate, measures
from lightning_tpauc.comparison.store import Store
from lightning_tpauc.errors import ArgumentError, DataError, UnsupportedError
from tests.comparison.test_comparing import SHORT, Keyed, cells, forks, kill_and_go_on, table, without_times
from tests.helpers.paths import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed"),
]

CORNER, WIDE = (0.5, 0.5), (0.25, 0.75)
#: ``liver`` has a rectangle of its own, ``rare`` few positives, and ``skin`` was not measured in the test set.
NAMES, OWN = ("liver", "lung", "rare", "skin"), (0.5, 0.2)
RECTANGLES = (OWN, CORNER, CORNER, CORNER)
TASKS = {"tasks": {"liver": {"max_fpr": 0.2, "weight": 2.0}}}


def part(seed, count=240, skin=True):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 5, generator=generator)
    y = x[:, :4] + torch.randn(count, 4, generator=generator) > torch.tensor([1.0, 1.0, 2.6, 1.0])
    y = y.float()
    y[torch.rand(count, 4, generator=generator) < 0.2] = math.nan
    if not skin:
        y[:, 3] = math.nan
    return x, pd.DataFrame(y.numpy(), columns=list(NAMES))


def problem(seed=0, **options):
    given = {"val_dataset": part(1), "test_dataset": part(2, skin=False), **options}
    return PosNegDataModule(part(0), num_pos=16, num_neg=16, seed=seed, **given)


def net():
    return torch.nn.Linear(5, 4)


def run(folder, **options):
    given = {"model": net, "datamodule": problem(), "accelerator": "cpu", "module": TASKS, **SHORT, **options}
    return compare(given.pop("model"), given.pop("datamodule"), folder, **given)


@pytest.mark.parametrize("algorithm", [STACO(), CrossEntropy()])
@pytest.mark.parametrize("options", [{}, {"sampling": "uniform"}])
def test_examples_per_step_are_those_of_a_real_step(algorithm, options):
    datamodule = problem(**options)
    datamodule.setup("fit")
    recorder = training._Recorder(lambda _: None, 5)
    batches = []

    class Counts(training.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            batches.append(len(batch.inputs))

    expected = examples_per_step(datamodule, algorithm)
    silent = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = Trainer(max_steps=5, max_epochs=-1, callbacks=[recorder, Counts()], enable_model_summary=False, **silent)
    trainer.fit(TPAUCModule(net(), algorithm), problem(**options))
    assert recorder.examples == sum(batches) == 5 * expected


# ---------------------------------------------------------------- one label stays as it was


def test_the_files_of_one_label_stay_as_they_were(tmp_path):
    """The files in ``single_label`` were written before there were several labels."""

    def fixed(k, shift):
        i = torch.arange(90)
        target = (i % 4 == 0).long()
        return Evaluated((i * (37 + 2 * k) % 101).double() / 101 + shift * target, target)

    scores = {"cross-entropy": [fixed(0, 0.25), fixed(1, 0.3)], "STACO": [fixed(2, 0.4), fixed(3, 0.45)]}
    found = evaluate(scores, "cross-entropy", [CORNER, WIDE])
    rows = [Row(n, found.measured[n], found.intervals[n], [1.0, 2.0], 480, "Adam, lr 0.01") for n in scores]
    rows.append(Row("wild", {}, failed="Not finite"))
    curves = {n: [[{"examples": 240.0, "tpauc": 0.5}, {"examples": 480.0, "tpauc": 0.6}]] * 2 for n in scores}
    shown = ([CORNER, WIDE], rows, found.differences, "cross-entropy", "test", scores, curves, found.num_resamples)
    runs = [Run(0, None), Run(1, None)]
    notes = notes_of(Results(*shown), runs, ["Trained on one device."])[:-1]
    write_report(Results(*shown, notes), tmp_path, title_of(Results(*shown), runs))
    pictures = {path.name for path in tmp_path.glob("*.png")}
    texts = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir() if path.name not in pictures}
    texts["report.html"] = re.sub(r'base64,[^"]*', "base64,", texts["report.html"])
    before = ROOT / "tests" / "comparison" / "single_label"
    assert texts == {path.name: path.read_text(encoding="utf-8") for path in before.iterdir()}
    assert pictures == {"roc.png", "training.png"}
    rows[1] = Row("STACO", found.measured["STACO"], found.intervals["STACO"], [1.0, 2.0], 460)
    said = " ".join(notes_of(Results(*shown), runs, []))  # trainings are rounded to whole steps between validations
    assert "as many examples, up to the steps between two validations" in said
    assert "the same number of examples" not in said


# ---------------------------------------------------------------- a comparison


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labels")
    return folder, run(folder, seeds=2, trials=2, rectangles=[WIDE])


def test_methods_that_train_several_labels_take_part(finished):
    _, report = finished
    assert [row.method for row in report.results.rows] == ["cross-entropy", "balanced cross-entropy", "STACO"]
    assert "- Without PAUCI: it trains one label." in report.text.splitlines()
    assert sorted(report.verdicts) == ["STACO", "balanced cross-entropy"]


@pytest.mark.filterwarnings("ignore:test/tpauc of skin is nan")
def test_values_are_what_the_module_reports(finished):
    """The weights of each training, tested by a module of their own: means, and each label."""
    folder, report = finished
    store = Store(folder / "cells", Outcome)
    for row in report.results.rows:
        best = {}
        for key, outcome in cells(folder):
            if key["method"] == row.method and key["kind"] == "train":
                best.setdefault(key["factor"], []).append((key["run"][0], outcome, key))
        factor = max(best, key=lambda f: np.mean([outcome.validation["tpauc"] for _, outcome, _ in best[f]]))
        for seed, _, key in sorted(best[factor], key=lambda found: found[0]):
            weights = torch.load(store.path(Keyed(key)).with_suffix(".pt"), weights_only=True)["weights"]
            module = TPAUCModule(net(), STACO(*CORNER), rectangles=[WIDE], **TASKS)
            module.load_state_dict(weights)
            trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
            (values,) = trainer.test(module, problem(), verbose=False)
            names = {"tpauc 0": "tpauc", "tpauc 1": "tpauc_tpr25_fpr75", "auroc": "auroc"}
            names |= {"tpr_at_max_fpr": "tpr_at_max_fpr", "fpr_at_min_tpr": "fpr_at_min_tpr"}
            found = {ours: row.measured[ours][seed] for ours in names}
            assert found == pytest.approx({ours: values[f"test/{theirs}"] for ours, theirs in names.items()}, abs=1e-6)
            for k, label in enumerate(NAMES[:3]):
                run_ = report.results.scores[row.method][seed].of_labels()[k]
                value = measures(run_, [RECTANGLES[k]])["tpauc 0"]
                assert value == pytest.approx(values[f"test/tpauc/{label}"], abs=1e-6)


def test_scores_are_those_of_the_weights_on_the_entries_that_were_measured(finished):
    _, report = finished
    y = part(2, skin=False)[1]
    known = ~np.isnan(y.to_numpy()).all(axis=1)
    target = np.nan_to_num(y.to_numpy(), nan=-1)[known]
    for runs in report.results.scores.values():
        assert all(np.array_equal(one.target.numpy(), target) for one in runs)
        assert all(one.scores.shape == (known.sum(), 4) for one in runs)


def test_the_tables_hold_each_label(finished):
    folder, report = finished
    rows = table(folder, "labels.csv")
    assert len(rows) == 4 * 3
    for row in rows:
        label = next(label for label in report.results.labels if label.name == row["label"])
        assert (float(row["min_tpr"]), float(row["max_fpr"])) == RECTANGLES[NAMES.index(row["label"])]
        assert (int(row["positives"]), int(row["negatives"])) == label.counts
        if row["label"] == "skin":
            assert {row[name] for name in ("tpauc", "tpauc_0.25_0.75", "auroc", "difference", "interval_low")} == {""}
            continue
        assert float(row["tpauc"]) == pytest.approx(label.measured[row["method"]]["tpauc 0"], abs=1e-5)
        if row["method"] == "cross-entropy":
            assert row["difference"] == ""
        else:
            ends = [float(row[name]) for name in ("difference", "interval_low", "interval_high")]
            assert ends == pytest.approx(label.differences[row["method"]], abs=1e-5)
            assert ends[1] <= ends[2]
    means = {row["method"]: float(row["tpauc_0.5_0.5_mean"]) for row in table(folder)}
    for method, mean in means.items():
        own = [float(row["tpauc"]) for row in rows if row["method"] == method and row["tpauc"]]
        assert mean == pytest.approx(np.mean(own), abs=2e-5)
    lines = (folder / "labels.md").read_text(encoding="utf-8").splitlines()
    assert lines[0].split(" | ")[:4] == ["| label", "rectangle", "positives", "negatives"]
    assert [line.split(" | ")[0] for line in lines[2:]] == [f"| {name}" for name in NAMES]
    assert lines[-1].startswith("| skin | (0.5, 0.5) | 0 | 0 | - | - | -")


def test_the_report_says_what_the_means_are_of(finished):
    folder, report = finished
    assert report.text.startswith("Mean of 3 labels, TPR >= 0.5 and FPR <= 0.5 on test data, 2 seeds\n")
    for line in (
        "No value, since a class has no test example: skin. They count in no mean.",
        "Trained and measured in a rectangle (min_tpr, max_fpr) of their own: liver (0.5, 0.2).",
    ):
        assert f"- {line}" in report.text.splitlines()
    assert re.search(r"- Fewer than 30 positives or negatives: .*rare", report.text)
    assert re.search(r"STACO against cross-entropy, mean of 3 labels, TPR >= 0.5, FPR <= 0.5: ", report.text)
    page = (folder / "report.html").read_text(encoding="utf-8")
    parsed = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>"))  # noqa: S314  # our own page
    shown = [[cell.text or "" for cell in row] for row in parsed.iter("tr")]
    assert [row[0] for row in shown] == ["method", *(r.method for r in report.results.rows), "label", *NAMES]
    assert len({len(row) for row in shown[4:]}) == 1
    assert len(list(parsed.iter("img"))) == 2


def test_learning_rates_are_chosen_by_the_mean(finished):
    folder, report = finished
    for row in report.results.rows:
        means = {}
        for key, outcome in cells(folder):
            if key["method"] == row.method and key["kind"] == "train":
                means.setdefault(key["factor"], []).append(outcome.validation["tpauc"])
        best = max(means, key=lambda factor: np.mean(means[factor]))
        assert row.optimizer == f"DampedAdam, lr {0.01 * best:.3g}"


def test_curves_have_a_panel_for_each_label_with_a_value(finished):
    _, report = finished
    figure = draw_roc_of_labels(report.results.scores, report.results.labels, "ROC")
    titles = [ax.get_title().split("\n")[0] for ax in figure.axes if ax.axison]
    assert titles == ["liver", "lung", "rare"]
    widths = [next(p.get_width() for p in ax.patches) for ax in figure.axes[:3]]
    assert widths == [0.2, 0.5, 0.5]


def many(num_labels):
    """Label k has k + 2 positives; every third has no negative."""
    target = torch.stack([(torch.arange(50) < k + 2).long() for k in range(num_labels)], 1)
    target[:, ::3] = target[:, ::3].where(target[:, ::3] == 1, -1)
    return Evaluated(torch.randn(50, num_labels, generator=torch.Generator().manual_seed(0)), target)


def test_of_many_labels_those_with_the_most_positives_are_drawn(tmp_path):
    one = many(30)
    labels = [(f"label {k} $^$", CORNER) for k in range(30)]  # no mathematics
    scores = {"cross-entropy": [one], "STACO": [one]}
    found = evaluate(scores, "cross-entropy", [CORNER], labels)
    figure = draw_roc_of_labels(scores, found.labels, "ROC")
    titles = [ax.get_title().split("\n")[0] for ax in figure.axes if ax.axison]
    assert titles == [f"label {k} $^$" for k in range(30) if k % 3][-12:]
    rows = [Row(name, found.measured[name], found.intervals[name], [1.0]) for name in scores]
    shown = ([CORNER], rows, found.differences, "cross-entropy", "test", scores, {"STACO": []}, 9)
    results = Results(*shown, labels=found.labels)
    notes = notes_of(results, [Run(0, None)], [])
    assert "The picture of ROC curves shows the 12 labels with the most positives." in notes
    assert sum(note.startswith("No value") for note in notes) == 1
    text = write_report(results, tmp_path, "title").text
    assert text.count("label 29 ") == 1
    assert "label 1 " not in text
    assert "These are the 20 of 30 labels with the most positives; labels.csv has all." in text
    with (tmp_path / "labels.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 60


def test_a_label_whose_curve_misses_its_rectangle_is_named():
    labels = [
        LabelResults(name, CORNER, 40, 40, {"a": {"tpauc 0": value}, "b": {"tpauc 0": 0.5}}, {"a": Difference(0, 0, 0)})
        for name, value in (("low", 0.0), ("high", 0.5))
    ]
    run_ = Evaluated(torch.zeros(2, 2), torch.tensor([[1, 0], [0, 1]]))
    shown = ([CORNER], [Row("a", {}), Row("b", {})], {}, "b", "test", {"a": [run_], "b": [run_]}, {}, 9)
    notes = notes_of(Results(*shown, labels=labels), [Run(0, None)], [])
    assert [note for note in notes if "passes below" in note] == ["a: the ROC curve passes below the rectangle of low."]


# ---------------------------------------------------------------- going on, side by side, folds


def everything(folder):
    return without_times(folder), (folder / "labels.csv").read_text(), (folder / "labels.md").read_text()


def test_a_killed_comparison_goes_on_to_the_same_end(tmp_path):
    killed, straight = kill_and_go_on(tmp_path, run)
    assert everything(killed) == everything(straight)


@forks
def test_trainings_side_by_side_give_what_one_after_the_other_does(tmp_path):
    run(tmp_path / "one", methods=["cross-entropy", "STACO", "SOTAs"])
    run(tmp_path / "two", methods=["cross-entropy", "STACO", "SOTAs"], processes=2)
    assert everything(tmp_path / "one") == everything(tmp_path / "two")


def test_other_demands_on_labels_are_trained_anew(tmp_path, monkeypatch):
    trained = []

    def note(setup, method, cell, *args):
        trained.append(method.name)
        return training.train_cell(setup, method, cell, *args)

    monkeypatch.setattr(comparing, "train_cell", note)
    run(tmp_path, methods=["cross-entropy", "STACO"])
    run(tmp_path, methods=["cross-entropy", "STACO"])
    assert len(trained) == 2
    for tasks in ({"liver": {"max_fpr": 0.2}}, {"rare": {"max_fpr": 0.2}}):
        run(tmp_path, methods=["cross-entropy", "STACO"], module={"tasks": tasks})
    assert len(trained) == 6
    run(tmp_path, methods=["cross-entropy", "STACO"])
    assert len(trained) == 6


def test_folds(tmp_path):
    x, y = part(0)

    def data(seed, fold, num_folds):
        return PosNegDataModule((x, y), num_pos=8, num_neg=8, seed=seed, fold=fold, num_folds=num_folds)

    report = run(tmp_path, datamodule=data, folds=2, seeds=2, methods=["cross-entropy", "STACO"], max_steps=4)
    assert report.results.part == "validation"
    assert "2 folds and 2 seeds" in report.text
    assert [label.counts for label in report.results.labels] == [
        (int((y[name] == 1).sum()), int((y[name] == 0).sum())) for name in NAMES
    ]


def test_methods_of_ones_own(tmp_path):
    sota = Method("SOTA", SOTA)
    report = run(tmp_path, methods=["cross-entropy", sota, "SOTAs"], module={})
    assert sorted(report.verdicts) == ["SOTA", "SOTAs"]
    assert "rectangle (min_tpr, max_fpr) of their own" not in report.text
    assert not any("labels" not in key["identity"] for key, _ in cells(tmp_path))


def test_a_class_of_ones_own_with_demands(tmp_path):
    report = run(tmp_path, model=functools.partial(TPAUCModule, net(), **TASKS), module={}, methods=["STACO", "SOTAs"])
    assert [label.rectangle for label in report.results.labels] == list(RECTANGLES)
    assert report.results.baseline == "STACO"


def test_labels_that_validate_nothing_are_named(tmp_path):
    data = problem(val_dataset=part(1, skin=False), test_dataset=part(2))
    report = run(tmp_path, datamodule=data, methods=["cross-entropy", "STACO"])
    line = "- skin lacks a class in validation data: the other labels alone chose weights and learning rates."
    assert line in report.text.splitlines()


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("name", ["PAUCI", "AUCM", "SONX", "FullBatch"])
def test_a_method_of_one_label_is_refused_by_its_name(tmp_path, name):
    given = Method("FullBatch", FullBatch) if name == "FullBatch" else name
    words = rf"^{name} of `methods` trains one label, but the data have 4: liver, lung, rare, skin\. Take cross-entropy"
    with pytest.raises(UnsupportedError, match=words):
        run(tmp_path, methods=["cross-entropy", "STACO", given])
    assert not (tmp_path / "cells").exists()


def test_what_cant_be_compared_is_one_line(tmp_path):
    x, y = part(3)
    one_class = x, y.where(y != 1)
    with pytest.raises(DataError, match=r"none of the 4 labels has a positive and a negative among .* of the test set"):
        run(tmp_path, datamodule=problem(test_dataset=one_class))
    with pytest.raises(DataError, match=r"none of the 4 labels has .* of the validation set"):
        run(tmp_path, datamodule=problem(val_dataset=one_class))
    with pytest.raises(ArgumentError, match="`tasks` has options of 'heart', but the data's labels are liver, lung"):
        run(tmp_path, module={"tasks": {"heart": {"weight": 2.0}}})

    def data(seed):
        names = list(NAMES) if seed == 0 else ["a", "b", "c", "d"]
        return PosNegDataModule((x, y.set_axis(names, axis=1)), num_pos=8, num_neg=8, val_fraction=0.5)

    with pytest.raises(
        ArgumentError, match=r"the same labels in all runs, .* liver, lung, rare, skin, and others the l"
    ):
        run(tmp_path, datamodule=data, seeds=2, module={})
    assert not (tmp_path / "cells").exists()


# ---------------------------------------------------------------- the command


class Fixed(PosNegDataModule):
    """Takes nothing."""

    def __init__(self):
        super().__init__(part(0), part(1), part(2, skin=False), num_pos=16, num_neg=16)


def test_the_command(tmp_path, capsys):
    words = ["compare", "--model", "TPAUCModule", "--model.backbone", "lightning_tpauc.models.Linear"]
    words += ["--model.backbone.num_features", "5", "--model.backbone.num_labels", "4"]
    words += ["--data", f"{__name__}.Fixed", "--trainer.max_steps", "4", "--trainer.accelerator", "cpu"]
    words += ["--model.tasks", '{"liver": {"max_fpr": 0.2}}', "--folder", str(tmp_path)]
    main(words)
    shown = capsys.readouterr().out
    assert "Without PAUCI: it trains one label." in shown
    assert "liver (0.5, 0.2)" in shown
    assert (tmp_path / "labels.csv").is_file()
    with pytest.raises(SystemExit, match="PAUCI of `methods` trains one label"):
        main([*words, "--methods", "[cross-entropy, PAUCI]"])
