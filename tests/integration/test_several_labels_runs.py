"""Whole runs on data with several labels: exact start, resuming, several processes, checkpoints, what is refused."""

import csv
from contextlib import suppress
from functools import partial

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torchmetrics.classification import BinaryAccuracy, MultilabelF1Score

from lightning_tpauc import (
    DecisionThreshold,
    PosNegDataModule,
    PredictionWriter,
    StageCallback,
    TPAUCModule,
)
from lightning_tpauc.algorithms import AUCM, PAUCI, SONX, STACO, CrossEntropy
from lightning_tpauc.errors import ArgumentError, CheckpointError, TPAUCWarning, UnsupportedError
from lightning_tpauc.functional import exact_duals, two_way_partial_auroc
from tests.helpers.problems import make_trainer
from tests.helpers.ranks import Dump
from tests.helpers.resuming import Crash, CrashError, Losses, assert_same_end
from tests.helpers.tasks import DIM, K, make_arrays
from tests.helpers.tensors import flat
from tests.helpers.tolerances import assert_close

pytestmark = pytest.mark.filterwarnings(
    "ignore::lightning_tpauc.errors.TPAUCAdvice",
    "ignore:.*does not have many workers.*",
    "ignore:.*Checkpoint directory.*",
    "ignore:.*use of fork.*:DeprecationWarning",
    "ignore:.*is 0.*the ROC curve passes below.*",
)
TASKS = {0: {"max_fpr": 0.7}, "2": {"min_tpr": 0.3, "weight": 2.0}}


def make_net(num_labels=K, dtype=torch.float32):
    torch.manual_seed(0)
    layers = nn.Linear(DIM, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, num_labels)
    return nn.Sequential(*layers).to(dtype)


def make_data(dtype=torch.float32, world=1, **options):
    x, y = make_arrays(260, dtype=dtype)
    sizes = {"num_pos": 12 // world, "num_neg": 24 // world, "batch_size": 50}
    return PosNegDataModule((x[:200], y[:200]), (x[200:], y[200:]), (x[150:], y[150:]), **{**sizes, **options})


def make_module(algorithm=None, net=None, **options):
    sgd = partial(torch.optim.SGD, lr=0.05, momentum=0.5)
    return TPAUCModule(net or make_net(), algorithm or STACO(0.4, 0.6), sgd, tasks=TASKS, **options)


def fit(module, data=None, ckpt_path=None, **options):
    trainer = make_trainer(**{"precision": "32-true", "max_epochs": 2, **options})
    trainer.fit(module, data or make_data(), ckpt_path=ckpt_path)
    return trainer


# ---------------------------------------------------------------------------------------------------- exact start


class AtStart(Callback):
    """The algorithm's state before the first step."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx == trainer.current_epoch == 0:
            self.state = {n: torch.as_tensor(v).clone() for n, v in pl_module.algorithm.state_dict().items()}


def test_the_start_is_exact_for_each_label():
    x, y = make_arrays(260, dtype=torch.float64)
    x, y, seen = x[:200], y[:200], AtStart()
    net = make_net(dtype=torch.float64)
    stages = StageCallback(shrink_rectangle=False)
    module = make_module(STACO(0.4, 0.6, duals="per_positive"), net)
    with torch.no_grad():
        scores = net.eval()(x)
    fit(module, make_data(torch.float64), precision="64-true", callbacks=[seen, stages], max_epochs=1)
    place = 0
    for k, rectangle in enumerate([(0.4, 0.7), (0.4, 0.6), (0.3, 0.6)]):
        pos, neg = scores[y[:, k] == 1, k], scores[y[:, k] == 0, k]
        expected = exact_duals(pos, neg, *rectangle, surrogate=module.algorithm.surrogate)
        own = slice(place, place + len(pos))
        place += len(pos)
        assert_close(seen.state["s"][own], expected.s)
        assert_close(seen.state["y"][own], expected.y)
        assert_close(seen.state["s_prime"][k], expected.s_prime)


# ---------------------------------------------------------------------------------------------------- resuming


METHODS = {
    "STACO2": lambda: STACO(0.4, 0.6, duals="per_positive", gamma=5.0, share_negatives=False),
    "tracked": lambda: STACO(0.4, 0.6),
    "balanced": lambda: CrossEntropy(0.4, 0.6, balanced=True),
}


def run(folder, method, crash=None, ckpt_path=None):
    module, losses = make_module(METHODS[method]()), Losses()
    saver = ModelCheckpoint(folder, save_last=True, every_n_train_steps=3)
    callbacks = [StageCallback(every_n_steps=5), losses, saver, *([Crash(crash)] if crash else [])]
    with suppress(CrashError):
        fit(module, callbacks=callbacks, enable_checkpointing=True, ckpt_path=ckpt_path, max_epochs=3)
    return module, losses.by_step


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_resumed_equals_unbroken(tmp_path, method):
    straight, losses = run(tmp_path / "a", method)
    run(tmp_path / "b", method, crash=7)
    torch.manual_seed(99)
    resumed, later = run(tmp_path / "b", method, ckpt_path=tmp_path / "b" / "last.ckpt")
    assert_same_end(straight, resumed)
    assert min(later) > 1
    assert all(torch.equal(later[step], losses[step]) for step in later)
    assert resumed.threshold == straight.threshold
    remembered = [flat(module.training_state.state_dict()) for module in (straight, resumed)]
    assert remembered[0].keys() == remembered[1].keys()
    assert all(torch.equal(v.nan_to_num(), remembered[1][n].nan_to_num()) for n, v in remembered[0].items())


def test_a_run_is_not_resumed_for_other_labels(tmp_path):
    module = make_module()
    trainer = fit(module, max_epochs=1)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    x, y = make_arrays(260)
    others = TPAUCModule(make_net(), STACO(0.4, 0.6), partial(torch.optim.SGD, lr=0.05), tasks={1: {"weight": 3.0}})
    with pytest.raises(CheckpointError, match=r"another tasks: \{.*, but now \{"):
        fit(others, ckpt_path=tmp_path / "a.ckpt")
    two = TPAUCModule(make_net(2), STACO(0.4, 0.6))
    data = PosNegDataModule((x, y[:, :2]), (x, y[:, :2]), num_pos=8, num_neg=8)
    with pytest.raises(CheckpointError, match=r"trained for the labels 0, 1, 2, but the data have the labels 0, 1:"):
        fit(two, data, ckpt_path=tmp_path / "a.ckpt")
    one = PosNegDataModule((x, (y[:, 0] == 1).long()), num_pos=8, num_neg=8)
    with pytest.raises(CheckpointError, match=r"the labels 0, 1, 2, but the data have one label"):
        fit(TPAUCModule(make_net(1), STACO(0.4, 0.6)), one, ckpt_path=tmp_path / "a.ckpt")


# ---------------------------------------------------------------------------------------------------- several processes


@pytest.mark.ddp
@pytest.mark.parametrize("method", ["STACO2", "balanced"])
def test_two_processes_reproduce_one(tmp_path, method):
    thresholds = []
    for world in (1, 2):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(DIM, 6), nn.Tanh(), nn.Linear(6, K)).double()
        module = make_module(METHODS[method](), net)
        strategy = {"devices": world, "strategy": "ddp_fork" if world > 1 else "auto", "precision": "64-true"}
        fit(
            module,
            make_data(torch.float64, world),
            callbacks=[Dump(tmp_path), StageCallback(every_n_steps=4)],
            **strategy,
        )
        thresholds.append(module.threshold)
    one, two = (torch.load(tmp_path / f"rank0of{world}.pt") for world in (1, 2))
    for part in ("state", "weights"):
        for name, value in one[part].items():
            told = slice(-1) if name in ("y", "s", "s_anchor", "s_moments") else ...  # the last entry is nobody's
            assert_close(two[part][name][told].double(), value[told].double(), "trajectory64")
    assert one["metrics"].keys() == two["metrics"].keys()
    for name, value in one["metrics"].items():
        assert_close(two["metrics"][name].double(), value.double(), "trajectory32")
    # a training in processes of its own gives its thresholds back
    assert {k: pytest.approx(v, rel=1e-9) for k, v in thresholds[0].items()} == thresholds[1]
    assert module.trained_labels.names == ("0", "1", "2")


# ---------------------------------------------------------------------------------------------------- what is reported


def test_a_checkpoint_is_evaluated_without_the_data_that_trained(tmp_path):
    data = make_data()
    module = make_module(rectangles=[(0.2, 0.9)])
    trainer = fit(module, data)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    expected = trainer.test(module, data, verbose=False)[0]
    loaded = TPAUCModule.load_from_checkpoint(tmp_path / "a.ckpt", backbone=make_net(), rectangles=[(0.2, 0.9)])
    assert loaded.threshold == module.threshold
    x, y = make_arrays(260)
    plain = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[150:], y[150:]), batch_size=7)
    for source in (make_data(), plain):
        result = make_trainer(precision="32-true").test(loaded, source, verbose=False)[0]
        assert result == pytest.approx(expected, nan_ok=True)
    with torch.no_grad():
        scores = loaded.eval().raw_scores(x[150:])
    for k, rectangle in enumerate([(0.4, 0.7), (0.4, 0.6), (0.3, 0.6)]):
        known = ~y[150:, k].isnan()
        value = float(two_way_partial_auroc(scores[known, k], y[150:, k][known].long(), *rectangle))
        assert result[f"test/tpauc/{k}"] == pytest.approx(value)
    assert result["test/tpauc"] == pytest.approx(sum(result[f"test/tpauc/{k}"] for k in range(K)) / K)
    other = PosNegDataModule(test_dataset=(x, y[:, :2]))
    with pytest.raises(ArgumentError, match=r"trained for the labels 0, 1, 2, but the data's are 0, 1"):
        make_trainer(precision="32-true").test(loaded, other)


def test_predictions_have_columns_for_each_label(tmp_path):
    path = tmp_path / "predictions.csv"
    module = make_module()
    choose = DecisionThreshold(calibration="sigmoid")
    trainer = fit(module, callbacks=[PredictionWriter(str(path)), choose])
    data = make_data(predict_dataset=make_arrays(260)[0])
    trainer.predict(module, data)
    rows = list(csv.DictReader(path.open()))
    columns = [f"{name}_{k}" for k in range(K) for name in ("score", "probability", "decision")]
    assert list(rows[0]) == ["example_id", *columns]
    with torch.no_grad():
        scores = module.eval().raw_scores(make_arrays(260)[0])
    for k in range(K):
        column = torch.tensor([float(row[f"score_{k}"]) for row in rows])
        assert_close(column, scores[:, k], "trajectory32")
        decisions = [int(row[f"decision_{k}"]) for row in rows]
        assert decisions == (column.double() >= module.threshold[str(k)]).long().tolist()


def test_metrics_of_ones_own():
    metrics = {"accuracy": BinaryAccuracy(), "f1": MultilabelF1Score(K, ignore_index=-1)}
    module = make_module(metrics=metrics)
    trainer = fit(module)
    x, y = (part[200:] for part in make_arrays(260))
    with torch.no_grad():
        thresholds = torch.tensor(list(module.threshold.values()), dtype=torch.float64)
        decided = module.eval().raw_scores(x).double() >= thresholds
    accuracies = [(decided[:, k] == (y[:, k] == 1))[~y[:, k].isnan()].double().mean() for k in range(K)]
    values = trainer.validate(module, make_data(), verbose=False)[0]
    for k in range(K):
        assert values[f"val/accuracy/{k}"] == pytest.approx(float(accuracies[k]), rel=1e-6)
    assert values["val/accuracy"] == pytest.approx(float(sum(accuracies)) / K, rel=1e-6)
    expected = MultilabelF1Score(K, ignore_index=-1)(decided.float(), y.nan_to_num(nan=-1).long())
    assert values["val/f1"] == pytest.approx(float(expected), rel=1e-6)
    with pytest.raises(ArgumentError, match=r"MultilabelF1Score of `metrics` would count.*ignore_index=-1"):
        fit(make_module(metrics={"f1": MultilabelF1Score(K)}))


# ---------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("algorithm", [AUCM, PAUCI, SONX])
def test_methods_of_one_label_say_so_at_the_start(algorithm):
    with pytest.raises(UnsupportedError, match=rf"{algorithm.__name__} trains one label, but the data have 3: 0, 1, 2"):
        fit(TPAUCModule(make_net(), algorithm()))


@pytest.mark.parametrize(
    ("outputs", "match"),
    [
        (1, r"The model has one output, shape \(\d+, 1\), but there are 3 labels: 0, 1, 2\. .*num_labels=3"),
        (4, r"The model has 4 outputs"),
    ],
)
def test_another_number_of_outputs(outputs, match):
    with pytest.raises(ArgumentError, match=match):
        fit(TPAUCModule(make_net(outputs)))


def test_another_order_of_the_columns_in_a_new_run_is_said():
    pd = pytest.importorskip("pandas")
    x, y = make_arrays(200)
    named = [pd.DataFrame(y.numpy(), columns=[f"t{k}" for k in range(K)])]
    named.append(named[0][named[0].columns[::-1]])
    module = TPAUCModule(nn.Linear(DIM, K))
    for labels in (named[0], named[0]):
        make_trainer(max_epochs=1).fit(module, PosNegDataModule((x, labels), num_pos=12, num_neg=24))
    with pytest.warns(TPAUCWarning, match="trained for the labels t0, t1, .*, now .*, t1, t0. Pass the columns"):
        make_trainer(max_epochs=1).fit(module, PosNegDataModule((x, named[1]), num_pos=12, num_neg=24))


@pytest.mark.parametrize(
    ("tasks", "match"),
    [
        ({"lung": {"weight": 2.0}}, r"`tasks` has options of 'lung', but the data's labels are 0, 1, 2"),
        ({"0": {"wight": 2.0}}, r"Expected `tasks` to be options by label, .* but got \{'0': \{'wight': 2\.0\}\}"),
    ],
)
def test_wrong_options_of_labels(tasks, match):
    with pytest.raises(ArgumentError, match=match):
        fit(TPAUCModule(make_net(), tasks=tasks))
