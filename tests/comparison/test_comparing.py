"""Comparisons from Python and from the command line, on small data."""

import base64
import csv
import functools
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import EarlyStopping
from sklearn.metrics import average_precision_score, roc_auc_score

import lightning_tpauc
from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.cli import main
from lightning_tpauc.comparison import Method, compare, comparing, training
from lightning_tpauc.comparison.plan import Outcome
from lightning_tpauc.comparison.running import check_processes, run_side_by_side
from lightning_tpauc.comparison.store import Store
from lightning_tpauc.errors import ArgumentError, DataError, UnsupportedError
from tests.helpers.paths import ROOT
from tests.reference.tpauc import naive_tpauc

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed"),
]

forks = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")

TWO = ["cross-entropy", "STACO"]
SHORT = {"max_steps": 12, "max_epochs": -1, "check_val_every_n_epoch": None, "val_check_interval": 4}


def part(seed, count=120):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 4 == 0
    return torch.randn(count, 3, generator=generator) + 0.8 * y[:, None], y


def problem(seed=0, **options):
    given = {"val_dataset": part(1), "test_dataset": part(2), **options}
    return PosNegDataModule(given.pop("train_dataset", part(0)), num_pos=8, num_neg=16, seed=seed, **given)


def model():
    return torch.nn.Linear(3, 1)


def run(folder, **options):
    given = {"model": model, "datamodule": problem(), "methods": TWO, "accelerator": "cpu", **SHORT, **options}
    return compare(given.pop("model"), given.pop("datamodule"), folder, **given)


def cells(folder):
    store = Store(folder / "cells", Outcome)
    return [(json.loads(key), outcome) for key, outcome in store]


def table(folder, name="table.csv"):
    with (folder / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def without_times(folder):
    """All that a comparison writes, but what clocks say."""
    clock = re.compile(r'"?seconds"?: [0-9.e-]+')
    found = {path.name: clock.sub("", path.read_text()) for path in sorted((folder / "cells").glob("*.json"))}
    for path in (folder / "cells").glob("*.pt"):
        tensors = torch.load(path, weights_only=True)
        found[path.name] = {k: v.tolist() for k, v in {**tensors.pop("weights", {}), **tensors}.items()}
    rows = [
        {k: v for k, v in row.items() if k != "seconds"}
        for name in ("table", "runs")
        for row in table(folder, f"{name}.csv")
    ]
    return found, rows, (folder / "differences.csv").read_text(), (folder / "roc.png").read_bytes()


# ---------------------------------------------------------------- what is compared


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    return folder, run(folder, seeds=2, trials=2, rectangles=[(0.25, 0.75)])


def test_values_are_those_of_the_stored_scores(finished):
    folder, report = finished
    for row in report.results.rows:
        tests = [key for key, _ in cells(folder) if key["kind"] == "test" and key["method"] == row.method]
        assert [key["run"] for key in sorted(tests, key=lambda key: key["run"])] == [[0, None], [1, None]]
        for k, scored in enumerate(report.results.scores[row.method]):
            pos, neg = (scored.scores[scored.target == label].double().numpy() for label in (1, 0))
            assert row.measured["tpauc 0"][k] == pytest.approx(naive_tpauc(pos, neg, 0.5, 0.5), abs=1e-9)
            assert row.measured["tpauc 1"][k] == pytest.approx(naive_tpauc(pos, neg, 0.25, 0.75), abs=1e-9)
            assert row.measured["auroc"][k] == pytest.approx(roc_auc_score(scored.target, scored.scores))
            expected = average_precision_score(scored.target, scored.scores)
            assert row.measured["average_precision"][k] == pytest.approx(expected)
            assert torch.equal(scored.target, part(2)[1].long())
    means = {row["method"]: float(row["tpauc_0.5_0.5_mean"]) for row in table(folder)}
    assert means == {r.method: pytest.approx(np.mean(r.measured["tpauc 0"]), abs=1e-5) for r in report.results.rows}
    (found,) = (d for d in table(folder, "differences.csv") if d["min_tpr"] == "0.50000")
    assert float(found["difference"]) == pytest.approx(means["STACO"] - means["cross-entropy"], abs=2e-5)
    assert found["verdict"] == report.verdicts["STACO"]


def test_test_scores_are_those_of_the_weights_that_validated_best(finished):
    folder, report = finished
    store = Store(folder / "cells", Outcome)
    for key, outcome in cells(folder):
        if key["kind"] == "train":
            weights = torch.load(store.path(Keyed(key)).with_suffix(".pt"), weights_only=True)["weights"]
            points = [(point["tpauc"], point["auroc"]) for point in outcome.curve]
            best = outcome.validation["tpauc"], outcome.validation["auroc"]
            assert best == pytest.approx(max(points), abs=1e-6) or (outcome.kept_start and best > max(points))
            x, y = part(1)
            scores = x @ weights["backbone.weight"][0] + weights["backbone.bias"]
            assert best[1] == pytest.approx(roc_auc_score(y, scores), abs=1e-6)
    for method, runs in report.results.scores.items():
        trained = [(k, o) for k, o in cells(folder) if k["kind"] == "train" and k["method"] == method]
        means = {}
        for key, outcome in trained:
            means.setdefault(key["factor"], []).append(outcome.validation["tpauc"])
        best = max(means, key=lambda factor: np.mean(means[factor]))
        for seed, scored in enumerate(runs):
            (key,) = (k for k, _ in trained if k["factor"] == best and k["run"] == [seed, None])
            weights = torch.load(store.path(Keyed(key)).with_suffix(".pt"), weights_only=True)["weights"]
            expected = part(2)[0] @ weights["backbone.weight"][0] + weights["backbone.bias"]
            torch.testing.assert_close(scored.scores, expected)


class Keyed:
    def __init__(self, key):
        self.key = json.dumps(key, sort_keys=True)


def test_all_methods_start_alike_and_see_as_many_examples(finished):
    trained = [(key, outcome) for key, outcome in cells(finished[0]) if key["kind"] == "train"]
    assert len(trained) == 2 * 2 * 2
    assert {outcome.examples for _, outcome in trained} == {12 * 24}
    starts = {seed: {k["identity"]["weights"] for k, _ in trained if k["run"][0] == seed} for seed in (0, 1)}
    assert all(len(found) == 1 for found in starts.values())
    assert starts[0] != starts[1]
    assert {outcome.optimizer for _, outcome in trained} == {"DampedAdam, lr 0.01", "DampedAdam, lr 0.0316"}
    assert all(len(outcome.curve) == 3 for _, outcome in trained)


def test_a_method_that_reads_more_negatives_takes_fewer_steps(tmp_path):
    two = Method("two batches", lambda *rectangle: STACO(*rectangle, share_negatives=False))
    run(tmp_path, methods=["STACO", two], datamodule=problem(num_dual_neg=24))
    found = {key["method"]: outcome for key, outcome in cells(tmp_path) if key["kind"] == "train"}
    assert {name: outcome.curve[-1]["step"] for name, outcome in found.items()} == {"STACO": 12, "two batches": 6}
    assert {outcome.examples for outcome in found.values()} == {288}


def test_a_backbone_is_where_all_methods_start_and_stays_as_it_is(tmp_path):
    net = model()
    before = net.weight.detach().clone()
    run(tmp_path, model=net)
    assert torch.equal(net.weight, before)


def test_seeds_draw_other_batches_and_leave_the_data_module_as_it_was(tmp_path):
    net, data = model(), problem(seed=7)
    run(tmp_path, model=net, datamodule=data, seeds=2)
    losses = {o.curve[0]["loss"] for key, o in cells(tmp_path) if key["kind"] == "train" and key["method"] == "STACO"}
    starts = {key["identity"]["weights"] for key, _ in cells(tmp_path)}
    assert (len(losses), len(starts), data.seed) == (2, 1, 7)


def test_weights_of_half_precision_and_limits_of_time(tmp_path):
    report = run(tmp_path, model=lambda: model().bfloat16(), precision="bf16-true", max_time={"seconds": 1})
    assert "Without max_time" in report.text
    assert {outcome.examples for key, outcome in cells(tmp_path) if key["kind"] == "train"} == {288}


def test_a_module_of_ones_own(tmp_path):
    class Own(TPAUCModule):
        def __init__(self, width, **kwargs):
            super().__init__(**kwargs)
            self.net = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))

        def forward(self, x):
            return self.net(x)

    sgd = functools.partial(torch.optim.SGD, lr=0.25)
    report = run(tmp_path, model=functools.partial(Own, 5), module={"optimizer": sgd}, trials=2)
    rates = {float(row.optimizer.removeprefix("SGD, lr ")) for row in report.results.rows}
    assert rates <= {0.25, 0.791}


def test_no_verdict_on_a_method_that_kept_its_first_weights(tmp_path):
    net = model()
    with torch.no_grad():
        net.weight.copy_(torch.ones(1, 3))  # the best direction; training starts there and is pushed away
    away = Method("away", STACO, {"optimizer": functools.partial(torch.optim.SGD, lr=10.0, maximize=True)})
    report = run(tmp_path, model=net, methods=["STACO", away, "SOTAs"])
    rows = {row.method: row for row in report.results.rows}
    assert rows["away"].kept_start
    torch.testing.assert_close(report.results.scores["away"][0].scores, net(part(2)[0]).squeeze(1).detach())
    words = r"open \(.*\): .*away never validated better than (its|their) first weights"
    assert re.fullmatch(words, report.verdicts["away"])
    for row in table(tmp_path, "differences.csv"):
        kept = rows["STACO"].kept_start or rows[row["method"]].kept_start
        assert row["verdict"].startswith("open") == kept
    assert "never validated better" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_folds(tmp_path):
    def data(seed, fold, num_folds):
        return PosNegDataModule(part(0), num_pos=8, num_neg=16, seed=seed, fold=fold, num_folds=num_folds)

    report = run(tmp_path, datamodule=data, folds=3)
    assert report.results.part == "validation"
    assert sum(len(scored.target) for scored in report.results.scores["STACO"]) == 120
    assert "There is no test set" in report.text
    assert "3 folds" in report.text


def test_a_method_that_diverges_is_a_row_and_not_the_end(tmp_path):
    wild = Method("wild", STACO, {"optimizer": functools.partial(torch.optim.SGD, lr=1e38)})
    report = run(tmp_path, methods=["cross-entropy", wild])
    assert report.results.rows[1].failed.startswith(("Not finite", "Diverged"))
    assert "wild failed: " in report.text
    assert report.verdicts == {}
    assert [row["failed"] == "" for row in table(tmp_path)] == [True, False]
    assert "wild" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_callbacks_that_would_end_a_training_are_left_out(tmp_path):
    report = run(tmp_path, callbacks=EarlyStopping("val/tpauc", patience=0, mode="min"))
    assert "Without EarlyStopping" in report.text
    assert {outcome.examples for key, outcome in cells(tmp_path) if key["kind"] == "train"} == {288}


# ---------------------------------------------------------------- going on


KILLED = """
import os, signal, sys
from pathlib import Path
from lightning_tpauc.comparison import training
from {module} import run

batches = []
record = training._Recorder.on_train_batch_end

def count(self, *args):
    batches.append(0)
    if len(batches) == 30:  # amid the third training
        os.kill(os.getpid(), signal.SIGKILL)
    record(self, *args)

training._Recorder.on_train_batch_end = count
run(Path(sys.argv[1]), **{options!r})
"""


def kill_and_go_on(tmp_path, run, **options):
    """A comparison that was killed and went on in the first folder, beside an unbroken one in the second."""
    killed, straight = tmp_path / "killed", tmp_path / "straight"
    script = KILLED.format(module=run.__module__, options=options)
    ended = subprocess.run([sys.executable, "-c", script, str(killed)], cwd=ROOT, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    assert len(cells(killed)) == 2
    before = {path: path.stat().st_mtime_ns for path in (killed / "cells").glob("*.json")}
    run(killed, **options)
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    run(straight, **options)
    return killed, straight


@pytest.mark.slow
def test_a_killed_comparison_goes_on_to_the_same_end(tmp_path):
    killed, straight = kill_and_go_on(tmp_path, run, trials=2)
    assert without_times(killed) == without_times(straight)


def test_what_has_finished_is_not_trained_again_and_what_differs_is(tmp_path, monkeypatch):
    trained = []

    def note(setup, method, cell, *args):
        trained.append((method.name, cell.factor, cell.run.seed))
        return training.train_cell(setup, method, cell, *args)

    monkeypatch.setattr(comparing, "train_cell", note)
    first = run(tmp_path)
    assert len(trained) == 2
    assert run(tmp_path).text == first.text
    assert len(trained) == 2
    run(tmp_path, trials=2)
    assert [factor for _, factor, _ in trained[2:]] == pytest.approx([10**0.5] * 2)
    assert len(trained) == 4
    run(tmp_path, seeds=2)
    assert [seed for _, _, seed in trained[4:]] == [1, 1]
    run(tmp_path, min_tpr=0.25)
    run(tmp_path, model=lambda: torch.nn.Sequential(model()))
    run(tmp_path, **{**SHORT, "max_steps": 8})
    run(tmp_path, methods=[*TWO, "SOTAs"])
    assert [name for name, _, _ in trained[6:]] == TWO * 3 + ["SOTAs"]


# ---------------------------------------------------------------- side by side


@forks
def test_trainings_side_by_side_give_what_one_after_the_other_does(tmp_path):
    options = {"seeds": 2, "methods": [*TWO, "SOTAs"]}
    text = run(tmp_path / "one", **options).text
    assert run(tmp_path / "three", processes=3, **options).text.splitlines()[0] == text.splitlines()[0]
    assert without_times(tmp_path / "three") == without_times(tmp_path / "one")
    expected = {key["method"] + str(key["run"]) + key["kind"]: outcome for key, outcome in cells(tmp_path / "one")}
    assert len(expected) == 12
    for key, outcome in cells(tmp_path / "three"):
        other = expected[key["method"] + str(key["run"]) + key["kind"]]
        assert (outcome.curve, outcome.validation) == (other.curve, other.validation)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "three" / "cells").glob("*.json")}
    run(tmp_path / "three", processes=2, **options)
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())


class Refused(TPAUCModule):
    words = "not today"

    def on_train_start(self):
        raise UnsupportedError(self.words)


class Killed(TPAUCModule):
    def on_train_start(self):
        os.kill(os.getpid(), signal.SIGKILL)


@forks
@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [(Refused, UnsupportedError, "^not today$"), (Killed, DataError, r"was killed \(exit code -9\)")],
)
def test_what_goes_wrong_in_a_process_ends_the_comparison(tmp_path, kind, error, words):
    with pytest.raises(error, match=words):
        run(tmp_path, model=functools.partial(kind, model()), processes=2)
    assert not multiprocessing.active_children()
    assert not list((tmp_path / "cells").glob("*.json"))


@forks
def test_an_error_of_more_words_than_a_pipe_holds_is_raised():
    def wrong(_):
        raise ValueError("x" * 300_000)

    def too_late(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(20)
    try:
        with pytest.raises(ValueError, match=r"^x{300000}$"):
            run_side_by_side([wrong, lambda advance: advance(1.0)], 2, lambda _: None)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert not multiprocessing.active_children()


def test_processes_are_for_cpus():
    check_processes(2, "cpu")
    with pytest.raises(ArgumentError, match="but the Trainer takes cuda"):
        check_processes(2, "cuda")
    with pytest.raises(ArgumentError, match="`processes`"):
        run("nowhere", processes=0)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("name", ["val_dataset", "test_dataset"])
@pytest.mark.parametrize("value", [0, 1])
def test_a_part_of_one_class_is_refused_before_any_training(tmp_path, name, value):
    x, y = part(1)
    words = f"the {'validation' if name == 'val_dataset' else 'test'} set has no {'negative' if value else 'positive'}"
    with pytest.raises(DataError, match=f"{words} among its 120 examples"):
        run(tmp_path, datamodule=problem(**{name: (x, torch.full_like(y, value))}))
    assert not (tmp_path / "cells").exists()


class Plain(LightningDataModule):
    def val_dataloader(self):
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*part(1)))


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            yield torch.zeros(3)


def test_what_cant_be_compared_is_one_line(tmp_path):
    with pytest.raises(DataError, match="on validation data, but there are none: pass `val_dataset`"):
        run(tmp_path, datamodule=problem(val_dataset=None))
    with pytest.raises(ArgumentError, match="`folds` needs a data module for each"):
        run(tmp_path, folds=2)
    with pytest.raises(ArgumentError, match="'max_step'"):
        run(tmp_path, max_step=3)
    with pytest.raises(ArgumentError, match="Expected `model` to be a backbone"):
        run(tmp_path, model=TPAUCModule(model()))
    with pytest.raises(ArgumentError, match=r"Expected `model` to be a torch\.nn\.Module"):
        run(tmp_path, model=3)
    with pytest.raises(ArgumentError, match="Expected `datamodule` to be a LightningDataModule"):
        run(tmp_path, datamodule=3)
    with pytest.raises(ArgumentError, match="Expected `datamodule` to be a PosNegDataModule, but got a Plain"):
        run(tmp_path, datamodule=Plain())
    streamed = problem(negatives=Endless(), train_dataset=(torch.ones(9, 3), torch.ones(9)), steps_per_epoch=4)
    with pytest.raises(UnsupportedError, match=r"negatives are a stream\. Leave it out"):
        run(tmp_path, datamodule=streamed)
    assert "STACO" in run(tmp_path, datamodule=streamed, methods=["STACO", "balanced cross-entropy"]).text
    with pytest.raises(ArgumentError, match="`seeds`"):
        run(tmp_path, seeds=0)


def test_a_function_that_returns_trained_weights_is_noticed(tmp_path):
    net = model()
    with pytest.raises(ArgumentError, match="must make a new one in each call"):
        run(tmp_path, model=lambda: net)


def test_an_optimizer_that_the_module_makes_has_no_rate_to_try(tmp_path):
    class Own(TPAUCModule):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    mine = functools.partial(Own, model())
    assert "SGD" in run(tmp_path, model=mine).text
    with pytest.raises(UnsupportedError, match="Own makes its own in `configure_optimizers`"):
        run(tmp_path, model=mine, trials=2)


# ---------------------------------------------------------------- the page


def test_the_page_holds_everything_and_is_well_formed(finished):
    folder, report = finished
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>"))  # noqa: S314  # our own page
    assert not re.findall(r"https?://|<script|<link|@import|url\(", text)
    pictures = [image.get("src") for image in page.iter("img")]
    kinds = [base64.b64decode(source.removeprefix("data:image/png;base64,"))[:8] for source in pictures]
    assert kinds == [b"\x89PNG\r\n\x1a\n"] * 2
    shown = [[cell.text or "" for cell in row] for row in page.iter("tr")]
    assert [row[0] for row in shown] == ["method", *TWO]
    assert {len(row) for row in shown} == {len(shown[0])}
    for line in report.text.splitlines():
        if line.startswith(("- ", "STACO against")):
            assert line.removeprefix("- ") in [entry.text for entry in page.iter("li")]


BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no browser is installed")
def test_a_browser_shows_the_page(finished, tmp_path):
    own = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    own += ["--window-size=500,900"]  # narrower than the table and the pictures, which scroll by themselves
    script = tmp_path / "page.html"
    text = (finished[0] / "report.html").read_text(encoding="utf-8")
    widths = "[...document.images].map(i => i.naturalWidth)"
    page = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    look = f"<script>document.title = [...{widths}, {page}].join()</script></body>"
    script.write_text(text.replace("</body>", look))
    shown = subprocess.run([BROWSER, *own, script.as_uri()], capture_output=True, text=True, check=True, timeout=60)
    *widths, beyond = map(int, re.search(r"<title>([0-9,-]*)</title>", shown.stdout)[1].split(","))
    assert len(widths) == 2
    assert all(width > 500 for width in widths)
    assert beyond == 0, "the page itself does not scroll sideways"


# ---------------------------------------------------------------- the command


@pytest.fixture
def config(tmp_path):
    text = (ROOT / "configs" / "quickstart.yaml").read_text(encoding="utf-8")
    path = tmp_path / "my.yaml"
    path.write_text(text.replace("max_epochs: 40", "max_epochs: 2"))
    return path


def test_the_command(config, tmp_path, capsys):
    words = ["compare", "--config", str(config), "--folder", str(tmp_path / "found"), "--methods", str(TWO)]
    main([*words, "--model.rectangles", "[[0.25, 0.75]]"])
    printed = capsys.readouterr().out
    assert (tmp_path / "found" / "report.txt").read_text().strip() in printed
    assert "report.html shows the curves" in printed
    assert "STACO against cross-entropy, TPR >= 0.25, FPR <= 0.75: " in printed
    assert "Without ModelCheckpoint" in printed
    assert {row["method"] for row in table(tmp_path / "found")} == set(TWO)
    assert {key["method"] for key, _ in cells(tmp_path / "found")} == set(TWO)
    assert not (tmp_path / "lightning_logs").exists()
    main([*words, "--model.rectangles", "[[0.25, 0.75]]"])  # nothing is left to do
    assert capsys.readouterr().out == printed
    main([*words[:-2], "--methods", "[cross-entropy, balanced cross-entropy]", "--folds", "2", "--seeds", "2"])
    assert "2 folds and 2 seeds" in capsys.readouterr().out


def test_the_command_takes_the_configuration_that_fit_saved(config, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["fit", "--config", str(config), "--trainer.logger", "CSVLogger", "--trainer.logger.save_dir", "logs"])
    (saved,) = (tmp_path / "logs").rglob("config.yaml")
    main(["compare", "--config", str(saved), "--folder", "found", "--methods", str(TWO)])
    assert "STACO against cross-entropy" in capsys.readouterr().out


def test_the_command_says_what_it_cant_do(config, tmp_path, capsys):
    words = ["compare", "--config", str(config), "--folder", str(tmp_path / "found")]
    for more, message in (
        (["--methods", "[STACO, STACO4]"], "names out of cross-entropy, .*but got 'STACO4'"),
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
        super().__init__(part(0), part(1), part(2), num_pos=8, num_neg=16)


def test_the_command_takes_data_and_models_of_ones_own(tmp_path, capsys):
    words = ["compare", "--model", "TPAUCModule", "--model.backbone", "lightning_tpauc.models.Linear"]
    words += ["--model.backbone.num_features", "3", "--data", f"{__name__}.Fixed", "--trainer.max_steps", "4"]
    words += ["--folder", str(tmp_path), "--methods", str(TWO), "--trainer.accelerator", "cpu"]
    main([*words, "--seeds", "2"])
    assert "2 seeds" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"`folds` needs data that can be cut into folds, but .*Fixed takes no"):
        main([*words, "--folds", "2"])


def test_help_lists_it(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert re.search(r"compare +Train several methods on the same data", capsys.readouterr().out)
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    shown = capsys.readouterr().out
    assert all(f"--{name}" in shown for name in ("folder", "methods", "trials", "seeds", "folds", "model", "data"))


def test_the_names_are_there():
    assert lightning_tpauc.compare is compare
    assert os.path.basename(lightning_tpauc.comparison.__file__) == "__init__.py"  # noqa: PTH119
