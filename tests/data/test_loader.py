"""Training and evaluation loaders."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from lightning_tpauc.data.examples import fetcher_for
from lightning_tpauc.data.loader import EvalLoader, Position, PosNegLoader
from lightning_tpauc.data.sampler import BatchSizes, PosNegSampler, UniformSampler
from tests.helpers.items import Items, N, X, Y, noisy, pair
from tests.helpers.worlds import rank_of, training_of

LABELS = Y.numpy()


def sampler(kind=PosNegSampler):
    return kind(training_of(LABELS), BatchSizes(3, 5, 4))


def loader(dataset=None, position=None, workers=0, kind=PosNegSampler):
    return PosNegLoader(
        sampler(kind), fetcher_for(Items(pair) if dataset is None else dataset), position, num_workers=workers
    )


def same(first, second):
    return (
        torch.equal(first.inputs, second.inputs) and torch.equal(first.index, second.index) and first[2:] == second[2:]
    )


def same_all(first, second):
    return len(first) == len(second) and all(same(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [1, 4, 10, 13])
def test_a_position_continues_anywhere(stop, workers):
    straight = loader(Items(noisy))
    batches = [batch for _ in range(2) for batch in straight]
    resumed = loader(Items(noisy), lambda _: Position(stop, stop % 10), workers)
    assert same_all(list(resumed), batches[stop : stop + 10 - stop % 10])


@pytest.mark.parametrize("kind", [PosNegSampler, UniformSampler])
def test_workers_change_nothing(kind):
    alone, helped = loader(Items(noisy), kind=kind), loader(Items(noisy), workers=2, kind=kind)
    for _ in range(2):
        assert same_all(list(helped), list(alone))
    # an iteration that is given up leaves no batches behind in the workers
    next(iter(helped))
    next(iter(alone))
    assert same_all(list(helped), list(alone))
    helped.close()
    assert same_all(list(helped), list(alone))
    helped.close()


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_make_up_the_global_batch(size, workers):
    whole = PosNegSampler(training_of(LABELS), BatchSizes(3 * size, 5 * size, 4 * size))
    parts = []
    for rank in range(size):
        one = loader(Items(noisy), workers=workers)
        with rank_of(rank, size):
            parts.append(list(one))
        one.close()
    for step, batch in enumerate(PosNegLoader(whole, fetcher_for(Items(noisy)))):
        ranks = [part[step] for part in parts]
        assert torch.equal(torch.cat([b.index for b in ranks]), batch.index)
        pieces = [b.inputs.split([b.num_pos, b.num_neg, b.num_dual_neg]) for b in ranks]
        assert torch.equal(torch.cat([torch.cat(piece) for piece in zip(*pieces, strict=True)]), batch.inputs)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("workers", [0, 2])
def test_memory_is_pinned(workers):
    fetch = fetcher_for(Items(noisy))
    pinned = PosNegLoader(sampler(), fetch, num_workers=workers, pin_memory=True)
    for batch, reference in zip(pinned, loader(Items(noisy)), strict=True):
        assert batch.inputs.is_pinned()
        assert batch.index.is_pinned()
        assert same(batch, reference)
    pinned.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_data_on_the_device_stay_there():
    for batch, reference in zip(loader(TensorDataset(X.cuda(), Y.cuda())), loader(), strict=True):
        assert batch.inputs.is_cuda
        assert torch.equal(batch.inputs.cpu(), reference.inputs)


# ------------------------------------------------------------------ evaluation

ROWS = np.random.default_rng(0).permutation(N)[:53]


def evaluation(batch_size=8, workers=0):
    return EvalLoader(ROWS, LABELS[ROWS].astype(np.int8), fetcher_for(X), batch_size, num_workers=workers)


@pytest.mark.parametrize("batch_size", [1, 8, 53, 100])
def test_evaluation_keeps_the_order(batch_size):
    batches = list(evaluation(batch_size))
    assert len(batches) == len(evaluation(batch_size)) == -(-53 // batch_size)
    assert [len(b.target) for b in batches[:-1]] == [batch_size] * (len(batches) - 1)
    assert torch.equal(torch.cat([b.inputs for b in batches]), X[torch.from_numpy(ROWS)])
    assert torch.equal(torch.cat([b.target for b in batches]), Y[torch.from_numpy(ROWS)].long())
    assert torch.cat([b.example_id for b in batches]).tolist() == list(range(53))


@pytest.mark.parametrize("size", [2, 3, 5, 8, 11])
def test_ranks_get_whole_batches_in_turn(size):
    reference = list(evaluation())  # 7 batches
    seen = []
    for rank in range(size):
        with rank_of(rank, size):
            batches = list(evaluation())
            assert len(batches) == len(evaluation()) == -(-7 // size)
        for turn, batch in enumerate(batches):
            position = rank + turn * size
            if position < 7:
                assert all(torch.equal(a, b) for a, b in zip(batch, reference[position], strict=True))
                seen += batch.example_id.tolist()
            else:
                assert (batch.target == -1).all()
                assert (batch.example_id == -1).all()
                assert len(batch.inputs) == len(batch.target) > 0
                assert batch.target.dtype == batch.example_id.dtype == torch.int64
    assert sorted(seen) == list(range(53))


def test_evaluation_workers_change_nothing():
    helped = evaluation(workers=2)
    for _ in range(2):
        pairs = zip(helped, evaluation(), strict=True)
        assert all(torch.equal(x, y) for a, b in pairs for x, y in zip(a, b, strict=True))
    helped.close()
