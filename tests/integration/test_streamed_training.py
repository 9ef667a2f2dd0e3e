"""Training with a stream of negatives, through the Trainer and the command."""

from functools import partial

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

from lightning_tpauc import NegativeStream, PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.cli import TPAUCCLI, main
from lightning_tpauc.errors import TPAUCWarning
from lightning_tpauc.functional import exact_duals
from tests.helpers.flows import Random
from tests.helpers.problems import LinearScore, make_trainer, paper_staco, paper_stages
from tests.helpers.resuming import (
    DIM,
    NUM_POS,
    assert_resumes_on_other_ranks,
    assert_resumes_to_the_last_bit,
    assert_same_end,
    fit_on_ranks,
    make_module,
)
from tests.helpers.streamed import make_datamodule, positives, rows, run
from tests.helpers.tolerances import assert_close
from tests.reference.staco import Settings, State, begin_stage, step

forks = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*Checkpoint directory.*"),
]


class Unmovable(Random):
    """Can't be asked where it stands, and begins anew each time."""

    def __getattribute__(self, name):
        if name in ("state_dict", "load_state_dict"):
            raise AttributeError(name)
        return super().__getattribute__(name)

    def __iter__(self):
        return iter(Random(self.seed, self.dim))


# ---------------------------------------------------------------- what is trained


class Indices(Callback):
    """Which positives each step had."""

    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append(batch.index.tolist())


def test_the_steps_are_those_of_the_paper_on_the_streams_rows():
    algorithm = paper_staco(0.6, 0.4, alpha=0.3, beta=0.2, beta_prime=0.1, dual_init="zeros")
    module = TPAUCModule(LinearScore(DIM), algorithm, lambda p: torch.optim.SGD(p, lr=0.1), warmup=0)
    data = PosNegDataModule(positives(torch.float64), negatives=Random(dim=DIM), num_pos=4, num_neg=3, num_dual_neg=5)
    indices = Indices()
    trainer = make_trainer(max_epochs=2, callbacks=[indices, paper_stages()])
    trainer.fit(module, data)
    assert len(indices.seen) == 12

    settings = Settings(0.4, 0.4, 0.5, "squared_hinge", 0.3, 0.2, 0.1, 0.1)
    state = State([0.0] * DIM, [1.0] * NUM_POS, [0.0] * NUM_POS, 0.0)
    anchors = begin_stage(state)
    x, stream = positives(torch.float64).tolist(), rows(12 * 8).double().tolist()
    for t, index in enumerate(indices.seen):
        neg, dual = stream[8 * t : 8 * t + 3], stream[8 * t + 3 : 8 * t + 8]
        step(state, anchors, [x[i] for i in index], neg, dual, index, settings)
    w_bar = torch.tensor([value / 12 for value in state.w_sum], dtype=torch.float64)
    assert_close(module.backbone.weight.detach(), w_bar, "float64")
    assert_close(module.algorithm.y, torch.tensor(state.y, dtype=torch.float64), "float64")
    assert_close(module.algorithm.s, torch.tensor(state.s, dtype=torch.float64), "float64")
    assert_close(module.algorithm.s_prime, torch.tensor(state.s_prime, dtype=torch.float64), "float64")


class KeepStart(Callback):
    """The dual variables before the first step."""

    def __init__(self, folder):
        self.folder = folder

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == 0:
            algorithm = pl_module.algorithm
            found = [t.clone() for t in (algorithm.s, algorithm.y, algorithm.s_prime)]
            torch.save(found, self.folder / f"start{trainer.global_rank}.pt")


class Short(IterableDataset):
    """Every ``step``-th of some rows, in as many parts as there are ranks; it does not say how many they are."""

    def __init__(self, first=0, step=1):
        self.first, self.step = first, step

    def shard(self, num_shards, index):
        return Short(index, num_shards)

    def __iter__(self):
        return iter(rows(33)[self.first :: self.step])


@forks
@pytest.mark.ddp
@pytest.mark.parametrize("split", ["deal", "shard", "own"])
def test_two_ranks_score_a_short_stream_once(tmp_path, split):
    """Of the parts of 17 and 16 rows, 16 each; where all read the same, the whole of it twice."""
    torch.manual_seed(0)
    module = TPAUCModule(nn.Linear(DIM, 1).double(), paper_staco(0.6, 0.4), lambda p: torch.optim.SGD(p, lr=0.1))
    x = rows(33)
    negatives = x.repeat(2, 1) if split == "own" else x[:32]
    with torch.no_grad():
        scores = (module(x.double())[:, 0] for x in (positives(), negatives))
        expected = exact_duals(*scores, 0.6, 0.4, "squared_hinge", 0.5)
    data = make_datamodule(NegativeStream(Short(), split), batch_size=5, steps_per_epoch=2)
    callbacks = [KeepStart(tmp_path), paper_stages()]
    trainer = make_trainer(precision="64-true", callbacks=callbacks, devices=2, strategy="ddp_fork")
    trainer.fit(module, data)
    for rank in range(2):
        for found, value in zip(torch.load(tmp_path / f"start{rank}.pt"), expected, strict=True):
            assert_close(found, value, "trajectory64")


# ---------------------------------------------------------------- a run that breaks


@pytest.mark.parametrize(("workers", "every", "crash"), [(0, 8, 17), (2, None, 19)])
def test_resumed_equals_unbroken(tmp_path, workers, every, crash):
    """32 steps, 8 an epoch: at an epoch's last step, at an epoch's end."""
    straight, losses = run(tmp_path / "a", make_datamodule(workers=workers), every=every)
    run(tmp_path / "b", make_datamodule(workers=workers), crash, every=every)
    torch.manual_seed(99)
    resumed, later = run(
        tmp_path / "b", make_datamodule(workers=workers), ckpt=tmp_path / "b" / "last.ckpt", every=every
    )
    assert later
    assert min(later) > 1
    for number, loss in later.items():
        assert torch.equal(loss, losses[number]), f"step {number}"
    assert_same_end(straight, resumed)


@pytest.mark.parametrize(
    ("make", "workers", "stages"),
    [
        (lambda: NegativeStream(Random(dim=DIM), "own"), 2, {}),
        (lambda: Random(dim=DIM), 0, {"scores": "forward"}),
    ],
    ids=["own, 2 workers", "forward"],
)
def test_other_ways_of_reading_resume_to_the_last_bit(tmp_path, make, workers, stages):
    straight, _ = run(tmp_path / "a", make_datamodule(make(), workers), every=3, **stages)
    run(tmp_path / "b", make_datamodule(make(), workers), 14, every=3, **stages)
    ckpt = tmp_path / "b" / "last.ckpt"
    resumed, later = run(tmp_path / "b", make_datamodule(make(), workers), ckpt=ckpt, every=3, **stages)
    assert min(later) == 13
    assert_same_end(straight, resumed)


def test_a_stream_that_cannot_be_moved(tmp_path):
    """It starts over, which is said once."""
    workers = 2
    straight, _ = run(tmp_path / "a", make_datamodule(Unmovable(dim=DIM), workers), every=3)
    known, _ = run(tmp_path / "c", make_datamodule(workers=workers), every=3)
    assert_same_end(known, straight)
    run(tmp_path / "d", make_datamodule(Unmovable(dim=DIM), workers), 14, every=3)
    with pytest.warns(TPAUCWarning, match="starts over while .*: Unmovable has no `state_dict`") as caught:
        resumed, later = run(
            tmp_path / "d", make_datamodule(Unmovable(dim=DIM), workers), ckpt=tmp_path / "d" / "last.ckpt", every=3
        )
    assert len([w for w in caught if w.category is TPAUCWarning]) == 1
    assert len(later) == 20
    assert not torch.equal(straight.backbone[0].weight, resumed.backbone[0].weight)


def run_ranks(folder, world, net=None, *, workers=0, crash=None, ckpt=None):
    """What each rank ended with; S = B = 12 over all ranks."""
    data = make_datamodule(workers=workers, num_pos=12 // world, num_neg=12 // world)
    module = make_module()
    module.backbone = net if net is not None else module.backbone
    stages = [StageCallback(every_n_steps=5)]
    return fit_on_ranks(module, data, folder, world, stages, steps=20, crash=crash, ckpt=ckpt)


@forks
@pytest.mark.ddp
def test_two_ranks_resume_to_the_last_bit(tmp_path):
    assert_resumes_to_the_last_bit(partial(run_ranks, world=2, workers=1), tmp_path)


@forks
@pytest.mark.ddp
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3)])
def test_any_number_of_ranks_trains_on_the_same_examples(tmp_path, before, after):
    assert_resumes_on_other_ranks(run_ranks, tmp_path, before, after)


# ---------------------------------------------------------------- from the command line

CONFIG = """
model:
  class_path: lightning_tpauc.TPAUCModule
  init_args:
    backbone: {class_path: torch.nn.Linear, init_args: {in_features: 3, out_features: 1}}
    algorithm: {class_path: lightning_tpauc.algorithms.STACO}
    optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1}}
data:
  class_path: lightning_tpauc.PosNegDataModule
  init_args:
    train_dataset: {class_path: tests.integration.test_streamed_training.Positives}
    val_dataset: {class_path: tests.integration.test_streamed_training.Both}
    negatives: NEGATIVES
    num_pos: 4
    num_neg: 8
    steps_per_epoch: 5
trainer: {max_epochs: 2, logger: false, enable_progress_bar: false, enable_model_summary: false, accelerator: cpu}
"""
STREAM = "{class_path: tests.helpers.flows.Random, init_args: {seed: 4}}"
SCORED = f"{{class_path: NegativeStream, init_args: {{num_scored: 40, dataset: {STREAM}}}}}"


class Positives(TensorDataset):
    """Inputs alone."""

    def __init__(self, n: int = 9):
        super().__init__(torch.randn(n, 3, generator=torch.Generator().manual_seed(0)) + 1)


class Both(TensorDataset):
    """Labelled."""

    def __init__(self):
        x = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
        super().__init__(x, (torch.arange(40) % 4 == 0).long())


@pytest.mark.usefixtures("tmp_cwd")
def test_a_config_names_a_stream(tmp_path, capsys, monkeypatch):
    fit = TPAUCCLI.subcommands()["fit"]
    monkeypatch.setattr(TPAUCCLI, "subcommands", staticmethod(lambda: {"fit": fit}))
    path = tmp_path / "stream.yaml"
    path.write_text(CONFIG.replace("NEGATIVES", SCORED), encoding="utf-8")
    seen = []
    monkeypatch.setattr(Indices, "on_train_batch_end", lambda *a: seen.append(a[4]))
    main(["fit", "--config", str(path), "--trainer.callbacks+=tests.integration.test_streamed_training.Indices"])
    printed = dict(line.strip().split(" = ") for line in capsys.readouterr().out.splitlines() if " = " in line)
    assert 0 <= float(printed["val/tpauc"]) <= 1
    assert len(seen) == 10
    expected = iter(Random(seed=4))
    first = torch.cat([next(expected).reshape(-1, 3) for _ in range(8)])
    assert torch.equal(seen[0].inputs[4:], first[:8])
