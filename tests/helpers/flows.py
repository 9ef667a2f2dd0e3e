"""Streams of negatives whose k-th example says that it is the k-th."""

import itertools

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from lightning_tpauc.data.datamodule import PosNegDataModule

WIDTH = 3


def row(k, epoch=0):
    """Example k of a pass."""
    return torch.tensor([float(k), k + 0.5, float(epoch)])


class Plain(IterableDataset):
    """The first ``n`` rows, or all that there are; it can't be asked where it stands."""

    def __init__(self, n: int | None = None, start: int = 0):
        self.n, self.start = n, start

    def numbers(self):
        return itertools.count(self.start) if self.n is None else range(self.start, self.start + self.n)

    def __iter__(self):
        return (row(k) for k in self.numbers())


class Sized(Plain):
    def __len__(self):
        return self.n


class Epochs(Plain):
    """The third feature is the number of the pass."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return (row(k, self.epoch) for k in self.numbers())


class Stateful(Plain):
    """Keeps its position in itself, as torchdata's tutorial does, and begins anew behind its end."""

    def __init__(self, n: int | None = None):
        super().__init__(n)
        self.at = 0

    def __iter__(self):
        while self.n is None or self.at < self.n:
            self.at += 1
            yield row(self.at - 1)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class StatefulIterator:
    """The iterator of :class:`Iterators`."""

    def __init__(self, n):
        self.n, self.at = n, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == self.n:
            raise StopIteration
        self.at += 1
        return row(self.at - 1)

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Iterators(IterableDataset):
    """Its iterators know where they stand, it does not."""

    def __init__(self, n=None):
        self.n = n

    def __iter__(self):
        return StatefulIterator(self.n)


class Random(IterableDataset):
    """Rows from a generator of its own, whose state it can tell and take."""

    def __init__(self, seed: int = 0, dim: int = WIDTH):
        self.seed, self.dim = seed, dim
        self.generator = np.random.default_rng(seed)

    def __iter__(self):
        while True:
            yield torch.from_numpy(self.generator.standard_normal(self.dim).astype(np.float32))

    def state_dict(self):
        return self.generator.bit_generator.state

    def load_state_dict(self, state):
        self.generator.bit_generator.state = state


class Shards(Plain):
    """Gives parts of itself, as Hugging Face's streams do."""

    step = 1

    def shard(self, num_shards, index):
        part = Shards(self.n, index)
        part.step = num_shards
        return part

    def numbers(self):
        return itertools.count(self.start, self.step) if self.n is None else range(self.start, self.n, self.step)


class OwnWorkers(Plain):
    """Divides itself among workers, as torch's documentation shows."""

    def numbers(self):
        info = get_worker_info()
        return itertools.count() if info is None else itertools.count(info.id, info.num_workers)


def numbers_of(inputs):
    """Which examples these are."""
    return inputs[:, 0].int().tolist()


POSITIVES = -1.0 - torch.arange(7.0)[:, None].expand(7, WIDTH)


def ready(negatives, train=POSITIVES, **kwargs):
    datamodule = PosNegDataModule(
        train, negatives=negatives, **{"num_pos": 2, "num_neg": 3, "num_dual_neg": 2, **kwargs}
    )
    datamodule.setup("fit")
    return datamodule


def negatives_of(batch):
    """Numbers of the negatives and of the dual negatives of a batch."""
    numbers = numbers_of(batch.inputs)[batch.num_pos :]
    return numbers[: batch.num_neg], numbers[batch.num_neg :]


def batches_of(datamodule, epochs=1):
    loader = datamodule.train_dataloader()
    batches = [batch for _ in range(epochs) for batch in loader]
    datamodule.teardown("fit")
    return batches
