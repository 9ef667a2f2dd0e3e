"""A step in chunks: the gradient of the whole batch in the memory of a part of it."""

import copy
from functools import partial

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lightning_tpauc import PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import AUCM, PAUCI, SONX, SOTA, STACO, CrossEntropy, FullBatch
from lightning_tpauc.data.batch import PosNegBatch
from lightning_tpauc.errors import ArgumentError, UnsupportedError
from tests.helpers.problems import make_problem, make_trainer
from tests.helpers.resuming import assert_same_end
from tests.helpers.tolerances import assert_close

pytestmark = pytest.mark.filterwarnings(
    "ignore:Only .* positives a step", "ignore:PAUCI is made for scores:lightning_tpauc.errors.TPAUCWarning"
)

SGD = partial(torch.optim.SGD, lr=0.1)


class Counting(nn.Sequential):
    """How many rows its forward passes had, with and without a graph."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.rows = {True: [], False: []}

    def forward(self, inputs):
        if self.training:
            self.rows[torch.is_grad_enabled()].append(len(inputs))
        return super().forward(inputs)


def net(labels=1, *more):
    torch.manual_seed(0)
    return Counting(nn.Linear(5, 6), *more, nn.Tanh(), nn.Linear(6, labels))


def fit(backbone, algorithm, labels=1, optimizer=SGD, cls=TPAUCModule, chunk_size=None, **options):
    x, y = make_problem()
    if labels > 1:
        y = torch.stack([y, y.roll(30), y.roll(60)], 1).double()
        y[::7, 1] = torch.nan
    data = PosNegDataModule((x.float() if "precision" in options else x.double(), y), num_pos=6, num_neg=11)
    module = cls(backbone, algorithm, optimizer, chunk_size=chunk_size)
    settings = {"max_steps": 6, "max_epochs": -1, "callbacks": [StageCallback(every_n_steps=3)], **options}
    make_trainer(**settings).fit(module, data)
    return module


@pytest.mark.parametrize(
    ("algorithm", "labels", "optimizer"),
    [
        (STACO(0.6, 0.4, gamma=4.0), 1, SGD),
        (STACO(0.6, 0.4, share_negatives=False), 1, SGD),
        (STACO(0.6, 0.4, duals="tracked"), 1, SGD),
        (STACO(0.6, 0.4), 3, SGD),
        (CrossEntropy(), 1, SGD),
        (CrossEntropy(), 3, SGD),
        (AUCM(), 1, SGD),
        (SONX(0.6, 0.4), 1, SGD),
        (SOTA(0.6, 0.4), 1, SGD),
        (PAUCI(0.6, 0.4), 1, SGD),
        (FullBatch(0.6, 0.4), 1, partial(torch.optim.LBFGS, max_iter=3)),
    ],
    ids=lambda value: f"{value!r}"[:40],
)
def test_the_step_is_that_of_the_whole_batch(algorithm, labels, optimizer):
    whole = fit(net(labels), algorithm, labels, optimizer)
    chunked = fit(net(labels), algorithm, labels, optimizer, chunk_size=4)
    for one, other in zip(whole.parameters(), chunked.parameters(), strict=True):
        assert_close(other.detach(), one.detach())
    for name, value in whole.algorithm.state_dict().items():
        assert_close(chunked.algorithm.state_dict()[name], value)
    assert max(whole.backbone.rows[True]) > 4
    assert max(chunked.backbone.rows[True] + chunked.backbone.rows[False]) <= 4


class Replayed(Callback):
    """Takes the same step beside the run, with a graph of all chunks."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        torch.manual_seed(batch_idx)
        self.net, algorithm = copy.deepcopy(pl_module.backbone), copy.deepcopy(pl_module.algorithm)
        parts = [self.net(batch.inputs[k::4]).squeeze(1) for k in range(4)]
        scores = torch.stack([parts[row % 4][row // 4] for row in range(batch.num_examples)])
        algorithm(scores[: batch.num_pos], scores[batch.num_pos :], index=batch.index).backward()
        SGD(self.net.parameters()).step()
        self.random = torch.get_rng_state()
        torch.manual_seed(batch_idx)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        for name, ours in pl_module.backbone.state_dict().items():
            assert_close(ours, self.net.state_dict()[name])
        assert torch.equal(torch.get_rng_state(), self.random)


@pytest.mark.filterwarnings("ignore::lightning_tpauc.errors.TPAUCAdvice")
def test_dropout_and_statistics_are_replayed():
    backbone = net(1, nn.BatchNorm1d(6), nn.Dropout(0.5)).double()
    stages = StageCallback(shrink_rectangle=False)
    fit(backbone, STACO(0.6, 0.4), chunk_size=5, max_steps=3, callbacks=[Replayed(), stages])
    assert int(backbone[1].num_batches_tracked) == 12


def test_a_resumed_run_is_the_straight_one(tmp_path):
    def train(checkpoint=None):
        x, y = make_problem()
        data = PosNegDataModule((x, y), num_pos=6, num_neg=11)
        module = TPAUCModule(net(1, nn.Dropout(0.5)), STACO(0.6, 0.4), SGD, chunk_size=5)
        saver = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=4, save_top_k=-1)
        settings = {"max_steps": 9, "max_epochs": -1, "precision": "32-true", "enable_checkpointing": True}
        make_trainer(callbacks=[saver], **settings).fit(module, data, ckpt_path=checkpoint)
        return module

    straight = train()
    assert_same_end(straight, train(tmp_path / "step=4.ckpt"))


def test_mixed_precision_keeps_its_gradients():
    whole, chunked = (fit(net(), STACO(0.6, 0.4), chunk_size=size, precision="bf16-mixed") for size in (None, 4))
    start = [p.detach() for p in net().parameters()]
    for first, one, other in zip(start, whole.parameters(), chunked.parameters(), strict=True):
        assert torch.equal(first, one) is torch.equal(first, other)
        assert_close(other.detach(), one.detach(), "half")


@pytest.mark.slow
@pytest.mark.ddp
@pytest.mark.filterwarnings("ignore:.*use of fork.*")
def test_processes_add_up_gradients_once_a_step(tmp_path):
    """And end with the weights of one process with whole batches."""

    def counted(_, bucket):
        with (tmp_path / f"rank{torch.distributed.get_rank()}").open("a") as file:
            file.write("x")
        reduced = torch.distributed.all_reduce(bucket.buffer().div_(2), async_op=True)
        return reduced.get_future().then(lambda future: future.value()[0])

    class Save(Callback):
        def on_train_start(self, trainer, pl_module):
            if trainer.world_size == 2:
                trainer.strategy.model.register_comm_hook(None, counted)

        def on_train_end(self, trainer, pl_module):
            torch.save(pl_module.state_dict(), tmp_path / f"{trainer.world_size}_{trainer.global_rank}.pt")

    def train(world, chunk_size, strategy="auto"):
        x, y = make_problem()
        data = PosNegDataModule((x.double(), y), num_pos=6 // world, num_neg=12 // world)
        module = TPAUCModule(net(), STACO(0.6, 0.4), SGD, chunk_size=chunk_size)
        settings = {"max_steps": 4, "max_epochs": -1, "strategy": strategy, "devices": world}
        make_trainer(callbacks=[Save()], **settings).fit(module, data)

    train(1, None)
    train(2, 2, "ddp_fork")
    expected = torch.load(tmp_path / "1_0.pt")
    for rank in range(2):
        for name, value in torch.load(tmp_path / f"2_{rank}.pt").items():
            assert_close(value, expected[name])
        assert (tmp_path / f"rank{rank}").read_text() == "xxxx"


def test_inputs_are_cut_or_refused():
    def parts(inputs):
        return PosNegBatch(inputs, torch.tensor([0]), 1, 4, 0).chunks(2)

    x = torch.arange(5)
    assert [p["a"].tolist() for p in parts({"a": x, "b": [x, x]})] == [[0, 3], [1, 4], [2]]
    assert [p[1].tolist() for p in parts((x, x.double()))] == [[0, 3], [1, 4], [2]]
    for wrong in (torch.zeros(4), {"a": x, "b": None}, ["text"] * 5, torch.zeros(5, 2).to_sparse()):
        with pytest.raises(ArgumentError, match="chunk_size"):
            parts(wrong)


def test_graphs_are_cut():
    data = pytest.importorskip("torch_geometric.data")
    graphs = [data.Data(x=torch.full((k + 1, 2), k), edge_index=torch.zeros(2, k, dtype=torch.int64)) for k in range(5)]
    batch = PosNegBatch(data.Batch.from_data_list(graphs), torch.tensor([0]), 1, 4, 0)
    first, *_ = batch.chunks(2)
    assert first.num_graphs == 2
    assert first.x[:, 0].tolist() == [0, 3, 3, 3, 3]
    assert first.batch.tolist() == [0, 1, 1, 1, 1]


class WithSecondLoss(TPAUCModule):
    def auxiliary_loss(self, batch, scores):
        return scores.pos_scores.sum()


def test_refused():
    with pytest.raises(ArgumentError, match="chunk_size"):
        TPAUCModule(nn.Linear(5, 1), chunk_size=0)
    with pytest.raises(UnsupportedError, match="auxiliary_loss"):
        fit(net(), STACO(0.6, 0.4), cls=WithSecondLoss, chunk_size=4)
