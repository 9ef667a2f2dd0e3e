"""Plans of all samplers, of one label and of several, against counts and loops that know nothing of their order."""

import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from lightning_tpauc.data.sampler import BatchSizes, FullSampler, PosNegSampler, UniformSampler, World
from lightning_tpauc.errors import DataError
from tests.helpers.worlds import rank_of, training_of

LABELS = np.arange(500) * 7 % 10 == 3


def make(kind=PosNegSampler, labels=LABELS, sizes=(4, 6, 5), seed=0):
    return kind(training_of(labels), BatchSizes(*sizes), seed)


def plans_of(sampler, rank, size, start=0, count=30):
    with rank_of(rank, size):
        return list(sampler.plans(start, count))


def cut(plan):
    """Rows of the positives, negatives, dual negatives."""
    return np.split(plan.rows, np.cumsum(plan.sizes)[:2])


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


def test_memory_beside_the_index_does_not_grow():
    training = training_of(np.arange(10**7 + 1000) < 10**7)
    tracemalloc.start()
    sampler = PosNegSampler(training, BatchSizes(32, 32, 32))
    for plan in sampler.plans(10**6, 1000):
        assert plan.sizes.num_pos == 32
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20  # the index itself is 80 MB


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


@pytest.mark.parametrize(("sizes", "name"), [((1, 6, 0), "num_neg"), ((1, 5, 6), "num_dual_neg")])
def test_refuses_more_negatives_than_there_are(sizes, name):
    sampler = make(labels=np.arange(21) < 10, sizes=sizes)
    assert len(sampler) > 0
    with rank_of(0, 2), pytest.raises(DataError, match=rf"12 negatives \(`{name}`=6 on 2 rank.*only 11.*at most 5"):
        len(sampler)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_partition_the_training_set(size):
    labels = np.array([1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0])
    positives, negatives = np.flatnonzero(labels), np.flatnonzero(labels == 0)
    sampler = FullSampler(training_of(labels), BatchSizes(32, 32, 32))
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


# ------------------------------------------------------------------ several labels

N = 400


def labels_of(num_labels=5, seed=0):
    """A tenth is positive, more of the later tasks; a third is not measured, and some rows not at all."""
    generator = np.random.default_rng(seed)
    chance = generator.random((N, num_labels))
    labels = np.where(chance < 0.05 + 0.1 * np.arange(num_labels) / num_labels, 1, 0).astype(np.int8)
    labels[generator.random((N, num_labels)) < 0.33] = -1
    labels[::37] = -1
    return labels


SEVERAL = labels_of()
ROWS = np.arange(3, N)


def make_several(kind=PosNegSampler, labels=SEVERAL, sizes=(12, 10, 6), seed=0, rows=ROWS):
    return kind(training_of(labels, rows), BatchSizes(*sizes), seed)


def drawn(plan, labels=SEVERAL, rows=ROWS):
    """(label, row, position) of each positive of a plan, one for each column."""
    found = []
    for column in range(plan.sizes.num_pos):
        (label,) = np.flatnonzero(plan.masks.pos[:, column])
        found.append((int(label), int(plan.rows[column]), int(plan.index[label, column])))
        assert (np.delete(plan.index[:, column], label) == 0).all()
    return found


@pytest.mark.parametrize("sizes", [(12, 10, 6), (12, 10, 0), (20, 8, 3), (7, 8, 0), (3, 8, 0), (1, 1, 1), (90, 8, 0)])
def test_a_plan_says_for_which_label_each_example_counts(sizes):
    for step, plan in enumerate(make_several(sizes=sizes).plans(0, 50)):
        num_pos, num_neg, num_dual = plan.sizes
        assert plan.step == step
        assert plan.shares is None
        assert (num_neg, num_dual) == sizes[1:]
        assert num_pos <= sizes[0]
        assert plan.masks.pos.shape == plan.index.shape == (5, num_pos)
        assert plan.masks.neg.shape == (5, num_neg)
        assert (plan.masks.dual_neg is None) == (num_dual == 0)
        for label, row, position in drawn(plan):
            mine = [r for r in ROWS if SEVERAL[r, label] == 1]
            assert mine[position] == row
        neg, dual = np.split(plan.rows[num_pos:], [num_neg])
        assert all((SEVERAL[row] == 0).any() for row in plan.rows[num_pos:])
        assert plan.masks.neg.tolist() == [[bool(SEVERAL[row, k] == 0) for row in neg] for k in range(5)]
        if num_dual:
            assert plan.masks.dual_neg.tolist() == [[bool(SEVERAL[row, k] == 0) for row in dual] for k in range(5)]
        assert len(set(neg)) == num_neg
        assert len(set(dual)) == num_dual


@pytest.mark.parametrize(("num_pos", "in_play", "each"), [(20, 5, 4), (24, 5, 4), (12, 3, 4), (7, 1, 7), (3, 1, 3)])
def test_the_labels_in_play_take_turns_and_share_the_positives(num_pos, in_play, each):
    visits = Counter()
    for plan in make_several(sizes=(num_pos, 5, 0)).plans(0, 50):
        count = Counter(label for label, _, _ in drawn(plan))
        assert set(count.values()) == {each}
        assert len(count) == in_play
        visits.update(count.keys())
        assert max(visits.values()) - min(visits[k] for k in range(5)) <= 1


@pytest.mark.parametrize("num_pos", [20, 12, 3])
def test_every_label_goes_through_its_positives_pass_after_pass(num_pos):
    seen = {k: [] for k in range(5)}
    for plan in make_several(sizes=(num_pos, 5, 0)).plans(0, 400):
        for label in range(5):
            own = [position for k, _, position in drawn(plan) if k == label]
            assert len(set(own)) == len(own)
            seen[label] += own
    for label, positions in seen.items():
        count = int((SEVERAL[ROWS, label] == 1).sum())
        whole = np.array(positions[: len(positions) // count * count]).reshape(-1, count)
        assert len(whole) > 1
        assert (np.sort(whole, axis=1) == np.arange(count)).all()
        assert (whole[0] != whole[1]).any()


def test_a_label_with_few_positives_gives_all_of_them():
    labels = SEVERAL.copy()
    labels[labels[:, 2] == 1, 2] = 0
    labels[[10, 20, 30], 2] = 1
    sampler = make_several(labels=labels, sizes=(40, 5, 0))
    for plan in sampler.plans(0, 20):
        assert Counter(k for k, _, _ in drawn(plan)) == {0: 8, 1: 8, 2: 3, 3: 8, 4: 8}


@pytest.mark.parametrize("sizes", [(12, 10, 6), (20, 8, 0), (90, 8, 0), (3, 50, 0)])
def test_an_epoch_shows_every_positive_and_is_no_longer_than_that_takes(sizes):
    sampler = make_several(sizes=sizes)
    steps, negatives = len(sampler), len(sampler.negatives)

    def seen(count):
        return [{p for plan in sampler.plans(0, count) for k, _, p in drawn(plan) if k == label} for label in range(5)]

    assert [len(found) for found in seen(steps)] == list(sampler.num_positives)
    if steps > -(-negatives // sizes[1]):
        # a little shorter, and some task has not seen all
        assert [len(found) for found in seen(steps - 3)] != list(sampler.num_positives)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", [PosNegSampler, UniformSampler])
def test_ranks_take_disjoint_slices_of_a_batch_of_several_labels(kind, size):
    sampler, whole = make_several(kind, sizes=(5, 7, 3)), make_several(kind, sizes=(5 * size, 7 * size, 3 * size))
    ranks = [plans_of(sampler, rank, size, start=7) for rank in range(size)]
    with rank_of(0, size):
        steps = len(sampler)
    assert steps == len(whole)
    for step, reference in enumerate(whole.plans(7, 30)):
        plans = [plans[step] for plans in ranks]
        assert all(plan.shares == tuple(other.sizes for other in plans) for plan in plans)
        for plan, other in ((plan, other) for plan in plans for other in plans):
            assert plan.shares == other.shares
        joined = [np.concatenate([p.index for p in plans], axis=1), reference.index]
        assert np.array_equal(*joined)
        for name in ("pos", "neg", "dual_neg"):
            expected = getattr(reference.masks, name)
            if expected is not None:
                found = np.concatenate([getattr(p.masks, name) for p in plans], axis=1)
                assert np.array_equal(found, expected)
        parts = [[p.rows] if kind is UniformSampler else np.split(p.rows, np.cumsum(p.sizes)[:2]) for p in plans]
        rows = np.concatenate([np.concatenate(part) for part in zip(*parts, strict=True)])
        assert np.array_equal(rows, reference.rows)


def test_negatives_of_a_label_are_a_uniform_sample_of_its_measured_ones():
    sampler = make_several(sizes=(12, 10, 0))
    counts = np.zeros((N, 5))
    steps = 3000
    for plan in sampler.plans(0, steps):
        counts[plan.rows[plan.sizes.num_pos :]] += plan.masks.neg.T
    for label in range(5):
        is_neg = (SEVERAL[:, label] == 0) & (np.arange(N) >= 3)
        assert counts[~is_neg, label].sum() == 0
        expected = steps * 10 / len(sampler.negatives)
        assert np.abs(counts[is_neg, label] - expected).max() <= 1.0 + 0.05 * expected


def test_a_uniform_pass_shows_every_measured_example_once():
    sampler = make_several(UniformSampler, sizes=(4, 6, 0))
    measured = [row for row in ROWS if (SEVERAL[row] >= 0).any()]
    assert len(sampler) == -(-len(measured) // 10)
    plans = list(sampler.plans(0, len(sampler)))
    rows = np.concatenate([plan.rows for plan in plans])[: len(measured)]
    assert sorted(rows) == measured
    for plan in plans:
        assert plan.sizes == (10, 10, 0)
        assert plan.masks.pos.tolist() == (SEVERAL[plan.rows].T == 1).tolist()
        assert plan.masks.neg.tolist() == (SEVERAL[plan.rows].T == 0).tolist()
        for label, column in zip(*np.nonzero(plan.masks.pos), strict=True):
            mine = [r for r in ROWS if SEVERAL[r, label] == 1]
            assert mine[plan.index[label, column]] == plan.rows[column]
