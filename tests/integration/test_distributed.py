"""Several processes against one, on the same samples, through the Trainer."""

import math
from functools import partial

import pytest
import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.pytorch import Callback

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO
from tests.helpers.ddp import run_distributed
from tests.helpers.problems import make_trainer
from tests.helpers.ranks import fit, make_net, make_problem
from tests.helpers.tolerances import assert_close

pytestmark = [
    pytest.mark.ddp,
    pytest.mark.filterwarnings(
        "ignore:.*does not have many workers.*",
        "ignore:.*every step takes all of them.*",
        "ignore:.*use of fork.*:DeprecationWarning",
    ),
]


@pytest.mark.parametrize(
    ("world", "gamma", "precision"), [(2, math.inf, "64-true"), (3, 4.0, "64-true"), (2, 4.0, "32-true")]
)
def test_ranks_reproduce_one_process(tmp_path, world, gamma, precision):
    (single,) = fit(tmp_path, 1, gamma=gamma, precision=precision)
    several = fit(tmp_path, world, gamma=gamma, precision=precision)
    row = "trajectory64" if precision == "64-true" else "trajectory32"
    assert single["steps"] == 50
    for other in several:
        assert other["steps"] == 50
        assert_close(other["losses"], single["losses"], row)
        for name, value in single["state"].items():
            value = value.double()  # whether it has started is among the state
            scale = value.abs().max().clamp_min(1.0)  # thresholds pass through zero in steps of tens
            assert_close(other["state"][name].double() / scale, value / scale, row)
        for name, value in single["weights"].items():
            assert_close(other["weights"][name], value, row)
        for ours, theirs in zip(other["mean"], single["mean"], strict=True):
            assert_close(ours, theirs, row)
        for name, value in several[0]["state"].items():
            assert torch.equal(other["state"][name], value), f"{name} differs between ranks"


def test_batch_norm_statistics_agree_on_all_ranks_in_validation(tmp_path):
    first, second = fit(tmp_path, 2, kind="batch norm", gamma=4.0)
    assert first["buffers"]
    for ours, theirs in zip(first["buffers"], second["buffers"], strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a, b)
    assert first["metrics"]["val/tpauc"] == second["metrics"]["val/tpauc"]
    assert torch.isfinite(first["metrics"]["val/tpauc"])


def test_fewer_positives_than_ranks(tmp_path):
    (single,) = fit(tmp_path, 1, positives=2, num_pos=3)
    several = fit(tmp_path, 3, positives=2, num_pos=3)
    for other in several:
        assert_close(other["state"]["s"], single["state"]["s"], "trajectory64")
        assert_close(other["weights"]["backbone.weight"], single["weights"]["backbone.weight"], "trajectory64")


class Attached(ClusterEnvironment):
    """The processes that run here already; they last for many Trainers."""

    creates_processes_externally = True
    main_address, main_port = "127.0.0.1", 0

    def __init__(self, rank, world):
        super().__init__()
        self.rank, self.world = rank, world

    @staticmethod
    def detect():
        return True

    def world_size(self):
        return self.world

    def global_rank(self):
        return self.rank

    def local_rank(self):
        return self.rank

    def node_rank(self):
        return 0

    def set_world_size(self, size):
        assert size == self.world

    def set_global_rank(self, rank):
        assert rank == self.rank


def together(rank, world):
    """Options of a Trainer."""
    return {"devices": world, **({"strategy": "ddp", "plugins": [Attached(rank, world)]} if world > 1 else {})}


def evaluate_all(rank, world, sizes, *, use_distributed_sampler):
    """Everything that validation reports, for each (examples, batch size)."""
    torch.manual_seed(0)
    module = TPAUCModule(make_net("batch norm", torch.float32), STACO(0.1, 0.9), rectangles=[(0.25, 0.75)])
    x, y = make_problem(dtype=torch.float32)
    x = x.round()  # ties
    y[[1, 4, 6]] = 1
    results = []
    for size, batch_size in sizes:
        trainer = make_trainer(
            precision="32-true",
            **together(rank, world),
            use_distributed_sampler=use_distributed_sampler,
        )
        data = PosNegDataModule(val_dataset=(x[:size], y[:size]), batch_size=batch_size)
        results.append(trainer.validate(module, data, verbose=False)[0])
    return results


@pytest.mark.filterwarnings("ignore::lightning_tpauc.errors.TPAUCWarning")  # a class is missing
@pytest.mark.parametrize(("use_distributed_sampler", "world"), [(True, 3), (False, 2)])
def test_reported_metrics_do_not_depend_on_the_number_of_ranks(use_distributed_sampler, world):
    """To the last bit, for shards of different sizes and for ranks that have no example at all."""
    sizes = [(size, batch_size) for size in (1, 2, 5, 8, 9, 10, 11) for batch_size in (1 + size % 3, 4)]
    options = {"use_distributed_sampler": use_distributed_sampler}
    expected = evaluate_all(0, 1, sizes, **options)
    assert {"val/tpauc", "val/auroc", "val/tpauc_tpr25_fpr75", "val/tpr_at_max_fpr", "val/fpr_at_min_tpr"} == set(
        expected[0]
    )
    defined = [result["val/tpauc"] for result in expected if not math.isnan(result["val/tpauc"])]
    assert len(set(defined)) > 3
    for results in run_distributed(lambda rank, world: evaluate_all(rank, world, sizes, **options), world):
        for how, ours, theirs in zip(sizes, results, expected, strict=True):
            assert repr(ours) == repr(theirs), f"{how} on {world} ranks"


class Rows(Callback):
    """Which rows each step took, by class; the first feature is the row's number."""

    def __init__(self):
        self.steps = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        rows = batch.inputs[:, 0].long()
        self.steps.append([part.tolist() for part in rows.split([batch.num_pos, batch.num_neg, batch.num_dual_neg])])


def train_rows(rank, world, *, use_distributed_sampler):
    x, y = make_problem()
    x[:, 0] = torch.arange(len(x))
    rows = Rows()
    trainer = make_trainer(
        **together(rank, world),
        use_distributed_sampler=use_distributed_sampler,
        callbacks=[rows],
        max_epochs=2,
    )
    data = PosNegDataModule((x, y), num_pos=12 // world, num_neg=18 // world)
    trainer.fit(TPAUCModule(make_net("linear", torch.float64), STACO(), partial(torch.optim.SGD, lr=0.0)), data)
    return rows.steps


@pytest.mark.parametrize("use_distributed_sampler", [True, False])
def test_ranks_take_disjoint_parts_of_one_batch(use_distributed_sampler):
    options = {"use_distributed_sampler": use_distributed_sampler}
    expected = train_rows(0, 1, **options)
    assert len(expected) == 10
    ranks = run_distributed(lambda rank, world: train_rows(rank, world, **options), 3)
    for step, whole in enumerate(expected):
        for part in range(3):
            joint = [row for rank in ranks for row in rank[step][part]]
            assert joint == whole[part], f"step {step}"
            assert len(set(joint)) == len(joint)
            assert {len(rank[step][part]) for rank in ranks} == {len(joint) // 3}
