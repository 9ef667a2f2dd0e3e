"""Slices of a batch; plans of all samplers on one and several ranks, and of the whole training set in every step."""

import math
import tracemalloc
from itertools import chain

import numpy as np
import pytest
from torch import distributed

from lightning_tpauc.data.sampler import (
    BatchSizes,
    FullSampler,
    PosNegSampler,
    UniformSampler,
    World,
    current_world,
    share_of,
    slice_of,
)
from lightning_tpauc.errors import ArgumentError, DataError
from tests.helpers.ddp import run_distributed
from tests.helpers.worlds import rank_of


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("total", [0, 1, 2, 6, 7, 100])
def test_slices_partition_the_batch(total, size):
    worlds = [World(rank, size) for rank in range(size)]
    items = [list(range(total))[slice_of(total, world)] for world in worlds]
    assert list(chain(*items)) == list(range(total))
    assert [len(part) for part in items] == [share_of(total, world) for world in worlds]
    assert max(map(len, items)) - min(map(len, items)) <= 1


def test_one_process():
    assert current_world() == World(0, 1)


@pytest.mark.ddp
def test_reads_the_process_group_when_asked():
    def ask(rank, size):
        inside = current_world()
        distributed.barrier()
        return inside

    assert run_distributed(ask, 2) == [World(0, 2), World(1, 2)]


LABELS = np.arange(500) * 7 % 10 == 3


def make(kind=PosNegSampler, labels=LABELS, sizes=(4, 6, 5), seed=0):
    return kind(np.flatnonzero(labels), np.flatnonzero(~labels), BatchSizes(*sizes), seed)


def plans_of(sampler, rank, size, start=0, count=30):
    with rank_of(rank, size):
        return list(sampler.plans(start, count))


def cut(plan):
    """Rows of the positives, negatives, dual negatives."""
    return np.split(plan.rows, np.cumsum(plan.sizes)[:2])


# ------------------------------------------------------------------ positives and negatives apart


def test_a_plan_has_each_class_in_its_place():
    positives = np.flatnonzero(LABELS)
    for step, plan in enumerate(make().plans(0, 200)):
        pos, neg, dual = cut(plan)
        assert plan.step == step
        assert plan.sizes == (4, 6, 5)
        assert plan.shares is None
        assert LABELS[pos].all()
        assert not LABELS[np.concatenate([neg, dual])].any()
        assert np.array_equal(positives[plan.index], pos)
        assert plan.rows.dtype == plan.index.dtype == np.int64


def test_passes_cover_both_classes_and_negative_streams_differ():
    labels = np.arange(460) < 60
    plans = list(make(labels=labels, sizes=(6, 8, 10)).plans(0, 50))
    pos, neg, dual = (np.concatenate(part) for part in zip(*map(cut, plans), strict=True))
    for drawn, n in ((pos, 60), (neg, 400), (dual, 400)):
        whole = drawn[: len(drawn) // n * n].reshape(-1, n)
        assert len(whole) >= 1
        assert (np.diff(np.sort(whole, axis=1), axis=1) == 1).all()
    # the dual batch is drawn, not copied: on average 8 x 10 / 400 of its examples are in the other one
    shared = [len(set(cut(plan)[1]) & set(cut(plan)[2])) for plan in plans]
    assert np.mean(shared) < 0.6


@pytest.mark.parametrize(("sizes", "world", "expected"), [
    ((4, 6, 0), 1, math.ceil(450 / 6)),
    ((4, 6, 0), 2, math.ceil(450 / 12)),
    ((4, 6, 0), 3, math.ceil(450 / 18)),
    ((1, 45, 0), 1, 50),
    ((1, 45, 99), 1, 50),
    ((60, 6, 0), 1, 75),
])  # fmt: skip
def test_an_epoch_is_a_pass_over_the_larger_class_in_steps(sizes, world, expected):
    with rank_of(0, world):
        assert len(make(sizes=sizes)) == expected


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_take_disjoint_slices_of_the_global_batch(size):
    sampler = make(sizes=(5, 7, 3))
    whole = make(sizes=(5 * size, 7 * size, 3 * size))
    ranks = [plans_of(sampler, rank, size) for rank in range(size)]
    for step, reference in enumerate(whole.plans(0, 30)):
        parts = [cut(plans[step]) for plans in ranks]
        joined = [np.concatenate([part[k] for part in parts]) for k in range(3)]
        assert all(np.array_equal(a, b) for a, b in zip(joined, cut(reference), strict=True))
        assert np.array_equal(np.concatenate([plans[step].index for plans in ranks]), reference.index)
        shares = {plans[step].shares for plans in ranks}
        assert shares == {((5, 7, 3),) * size}


@pytest.mark.parametrize(("n_pos", "expected"), [(7, [4, 3]), (1, [1, 0]), (2, [1, 1])])
def test_few_positives_are_shared_unevenly(n_pos, expected):
    labels = np.arange(100) < n_pos
    ranks = [plans_of(make(labels=labels, sizes=(8, 4, 0)), rank, 2) for rank in range(2)]
    for plans in zip(*ranks, strict=True):
        assert [plan.sizes.num_pos for plan in plans] == expected
        assert plans[0].shares == plans[1].shares == tuple((n, 4, 0) for n in expected)
        assert sorted(np.concatenate([plan.index for plan in plans])) == list(range(n_pos))


@pytest.mark.parametrize("start", [0, 1, 74, 75, 1234, 10**9])
@pytest.mark.parametrize("kind", [PosNegSampler, UniformSampler])
def test_a_step_is_the_same_wherever_one_starts(kind, start):
    sampler = make(kind)
    for plan in plans_of(sampler, 0, 1, start, 400)[::37]:
        (alone,) = plans_of(sampler, 0, 1, plan.step, 1)
        assert np.array_equal(alone.rows, plan.rows)
        assert np.array_equal(alone.index, plan.index)


def test_the_seed_changes_everything():
    first, second = (np.stack([p.rows for p in make(seed=seed).plans(0, 50)]) for seed in (0, 1))
    assert (first == second).mean() < 0.05


def test_memory_beside_the_index_does_not_grow():
    positives, negatives = np.arange(10**7), np.arange(10**7, 10**7 + 1000)
    tracemalloc.start()
    sampler = PosNegSampler(positives, negatives, BatchSizes(32, 32, 32))
    for plan in sampler.plans(10**6, 1000):
        assert plan.sizes.num_pos == 32
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20  # the index itself is 80 MB


# ------------------------------------------------------------------ uniform


def test_uniform_batches_are_sorted_by_class_and_cover_passes():
    positives = np.flatnonzero(LABELS)
    plans = list(make(UniformSampler).plans(0, 150))
    counts = []
    for plan in plans:
        pos, neg, dual = cut(plan)
        assert len(plan.rows) == 10
        assert len(dual) == 0
        assert LABELS[pos].all()
        assert not LABELS[neg].any()
        assert np.array_equal(positives[plan.index], pos)
        counts.append(plan.sizes.num_pos)
    assert min(counts) == 0 < max(counts)
    rows = np.concatenate([plan.rows for plan in plans]).reshape(3, 500)
    assert (np.sort(rows, axis=1) == np.arange(500)).all()


@pytest.mark.parametrize(("world", "expected"), [(1, 50), (2, 25), (3, 17)])
def test_a_uniform_epoch_is_one_pass(world, expected):
    with rank_of(0, world):
        assert len(make(UniformSampler)) == expected


def test_the_last_uniform_batch_is_filled_from_the_next_pass():
    sampler = make(UniformSampler, labels=LABELS[:47], sizes=(4, 6, 0))
    rows = np.concatenate([plan.rows for plan in sampler.plans(0, 5)])
    assert len(sampler) == 5
    assert len(rows) == 50
    assert set(rows) == set(range(47))


def test_a_uniform_batch_is_at_most_the_training_set():
    sampler = make(UniformSampler, labels=LABELS[:10], sizes=(6, 6, 0))
    assert len(sampler) == 1
    assert all(sorted(plan.rows) == list(range(10)) for plan in sampler.plans(0, 3))


@pytest.mark.parametrize("size", [2, 3])
def test_uniform_ranks_take_slices_of_each_class(size):
    whole = list(make(UniformSampler, sizes=(4 * size, 6 * size, 0)).plans(0, 40))
    ranks = [plans_of(make(UniformSampler), rank, size, count=40) for rank in range(size)]
    for step, reference in enumerate(whole):
        plans = [plans[step] for plans in ranks]
        assert np.array_equal(np.concatenate([plan.index for plan in plans]), reference.index)
        for k in (0, 1):
            assert np.array_equal(np.concatenate([cut(plan)[k] for plan in plans]), cut(reference)[k])
        assert {plan.shares for plan in plans} == {tuple(plan.sizes for plan in plans)}
        assert np.ptp([plan.sizes.num_pos for plan in plans]) <= 1


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("name", "sizes"), [("num_pos", (0, 1, 0)), ("num_neg", (1, 0, 0)), ("num_dual_neg", (1, 1, -1))]
)
def test_refuses_sizes(name, sizes):
    with pytest.raises(ArgumentError, match=f"`{name}` to be at least"):
        make(sizes=sizes)


@pytest.mark.parametrize(("value", "name"), [(False, "positive"), (True, "negative")])
def test_refuses_a_missing_class(value, name):
    with pytest.raises(DataError, match=f"got 0 {name} examples"):
        make(labels=np.full(10, value))


@pytest.mark.parametrize(("sizes", "name"), [((1, 6, 0), "num_neg"), ((1, 5, 6), "num_dual_neg")])
def test_refuses_more_negatives_than_there_are(sizes, name):
    sampler = make(labels=np.arange(21) < 10, sizes=sizes)
    assert len(sampler) > 0
    with rank_of(0, 2), pytest.raises(DataError, match=rf"12 negatives \(`{name}`=6 on 2 rank.*only 11.*at most 5"):
        len(sampler)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_partition_the_training_set(size):
    positives, negatives = np.array([8, 1, 5, 0]), np.array([2, 9, 4, 3, 6, 7, 10])
    sampler = FullSampler(positives, negatives, BatchSizes(32, 32, 32))
    plans = [list(sampler.block(5, 7, World(rank, size))) for rank in range(size)]
    for k, step in enumerate((5, 6)):
        mine = [plan[k] for plan in plans]
        assert [plan.step for plan in mine] == [step] * size
        assert np.concatenate([p.rows[: p.sizes.num_pos] for p in mine]).tolist() == positives.tolist()
        assert np.concatenate([p.rows[p.sizes.num_pos :] for p in mine]).tolist() == negatives.tolist()
        assert np.concatenate([p.index for p in mine]).tolist() == [0, 1, 2, 3]
        assert all(p.shares == (tuple(q.sizes for q in mine) if size > 1 else None) for p in mine)
    assert sampler.steps_per_epoch(size) == 1
    assert sampler.global_sizes(size) == BatchSizes(4, 7, 0)
