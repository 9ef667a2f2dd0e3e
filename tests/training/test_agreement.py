"""Ranks that have other data or settings than each other are told so, all of them, before they wait for each other."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset, random_split

from lightning_tpauc import NegativeStream, PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import SOTA, STACO
from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.training.guards import require_agreement
from tests.helpers.ddp import RankError, run_distributed
from tests.helpers.flows import Random
from tests.helpers.problems import make_trainer, shifted

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*")


# ---------------------------------------------------------------- the comparison


def on_ranks(describe_rank, world=2):
    def compare(rank, size):
        require_agreement(lambda: describe_rank(rank))
        return "agreed"

    return run_distributed(compare, world, return_errors=True, timeout=20)


def test_every_rank_says_who_has_what():
    results = on_ranks(lambda rank: {"same": [1, None], "`seed`": 7 if rank == 1 else 0, "other": rank}, world=3)
    for result in results:
        assert isinstance(result, RankError)
        assert "`seed`: 0 on rank 0, 7 on rank 1; other: 0 on rank 0, 1 on rank 1." in result.text
        assert "same" not in result.text.partition("ArgumentError")[2].partition("must share")[2].partition(".")[0]


# ---------------------------------------------------------------- what is compared


def make_data(rank=0, **kwargs):
    x, y = shifted(torch.arange(120) % 4 == 0, 3, 1.0)
    return PosNegDataModule((x, y), **{"num_pos": 4, "num_neg": 6, "val_fraction": 0.25, "batch_size": 16, **kwargs})


def unseeded(rank):
    """As if each rank had drawn from a generator that nobody seeded."""
    return torch.Generator().manual_seed(100 + rank)


def split_at_random(rank):
    generator = torch.Generator().manual_seed(0)
    y = (torch.arange(120) % 4 == 0).long()
    data = TensorDataset(torch.randn(120, 3, generator=generator), y)
    train, val = random_split(data, [90, 30], generator=unseeded(rank))
    return PosNegDataModule(train, val, num_pos=4, num_neg=6)


def generated(rank):
    y = (torch.arange(120) % 4 == 0).long()
    return PosNegDataModule((torch.randn(120, 3, generator=unseeded(rank)), y), num_pos=4, num_neg=6)


def other_labels_to_validate(rank):
    data = make_data()
    x, y = data.train_dataset
    return PosNegDataModule((x, y), (x, y.roll(rank)), num_pos=4, num_neg=6)


def streamed(rank):
    data = make_data()
    x, y = data.train_dataset
    sizes = {"num_pos": 4, "num_neg": 6, "steps_per_epoch": 4 + rank}
    return PosNegDataModule(x[y == 1], negatives=NegativeStream(Random(dim=3), num_scored=20), **sizes)


DATA = {
    "split_seed": (lambda rank: make_data(split_seed=rank), "`split_seed`: 0 on rank 0, 1 on rank 1"),
    "fold": (lambda rank: make_data(val_fraction=None, num_folds=3, fold=rank), "`fold`: 0 on rank 0, 1 on rank 1"),
    "random_split": (split_at_random, "rows of the training positives"),
    "generated data": (generated, "`train_dataset`: '120 examples"),
    "labels to validate": (other_labels_to_validate, "labels of `val_dataset`"),
    "a stream": (streamed, "`steps_per_epoch`: 4 on rank 0, 5 on rank 1"),
}


def sgd(lr):
    return lambda parameters: torch.optim.SGD(parameters, lr=lr)


def make_module(algorithm=None, lr=0.1, **kwargs):
    torch.manual_seed(0)
    return TPAUCModule(nn.Linear(3, 1), algorithm or STACO(), sgd(lr), **kwargs)


MODULES = {
    "algorithm": (lambda rank: make_module([STACO(), SOTA()][rank]), "algorithm: STACO("),
    "rectangle": (lambda rank: make_module(STACO(0.5 + 0.1 * rank, 0.5)), "algorithm: STACO(min_tpr=0.5"),
    "lr": (lambda rank: make_module(lr=0.1 * 2**rank), "lr: 0.1"),
}


def on_trainers(*cases, fn="fit", **limits):
    """What comes of each case on both ranks: the message of an error, or the number of steps.

    A case makes module and data for a rank; each builds all for itself, as a launched script does.
    """

    def work(rank, world):
        found = []
        for make_module_of, make_data_of in cases:
            trainer = make_trainer(precision="32-true", strategy="ddp", devices=2, **limits)
            try:
                getattr(trainer, fn)(make_module_of(rank), datamodule=make_data_of(rank))
                found.append(trainer.global_step)
            except ArgumentError as error:
                found.append(str(error))
        return found

    return zip(*run_distributed(in_environment(work), 2, timeout=60), strict=True)


def in_environment(work):
    def run(rank, world):
        with pytest.MonkeyPatch.context() as patch:
            # what torchrun sets; the process group is there already
            for name, value in {"LOCAL_RANK": rank, "RANK": rank, "WORLD_SIZE": world, "GROUP_RANK": 0}.items():
                patch.setenv(name, str(value))
            for name, value in {"LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "localhost", "MASTER_PORT": 1}.items():
                patch.setenv(name, str(value))
            patch.setenv("TORCHELASTIC_RUN_ID", "a")
            return work(rank, world)

    return run


def assert_refused(results, texts):
    for (first, second), text in zip(results, texts, strict=True):
        assert first == second
        assert str(first).startswith("The processes of this run differ in what they must share"), (text, first)
        assert text in first


def plain_module(rank):
    return make_module()


@pytest.mark.ddp
def test_other_data_are_refused_on_every_rank():
    makers, texts = zip(*DATA.values(), strict=True)
    assert_refused(on_trainers(*((plain_module, make) for make in makers)), texts)


@pytest.mark.ddp
def test_another_training_is_refused_on_every_rank():
    makers, texts = zip(*MODULES.values(), strict=True)
    assert_refused(on_trainers(*((make, make_data) for make in makers)), texts)


@pytest.mark.ddp
@pytest.mark.parametrize("fn", ["validate", "test"])
def test_other_data_to_evaluate_are_refused(fn):
    name = {"validate": "val", "test": "test"}[fn]

    def data(rank):
        x, y = make_data().train_dataset
        return PosNegDataModule(**{f"{name}_dataset": (x[: 40 + rank], y[: 40 + rank])})

    assert_refused(on_trainers((plain_module, data), fn=fn), [f"`{name}_dataset`: '40 examples"])


@pytest.mark.ddp
def test_equal_ranks_train():
    cases = (plain_module, make_data), (plain_module, lambda rank: streamed(0))
    assert list(on_trainers(*cases, max_steps=3, max_epochs=-1)) == [(3, 3), (3, 3)]
