"""Plans of several tasks, against counts and loops that know nothing of their order."""

from collections import Counter

import numpy as np
import pytest

from lightning_tpauc.data.parts import TrainingPart
from lightning_tpauc.data.sampler import BatchSizes, PosNegTaskSampler, TaskRows, UniformTaskSampler, sampler_of
from lightning_tpauc.errors import ArgumentError, DataError
from tests.helpers.worlds import rank_of

N = 400


def labels_of(num_tasks=5, seed=0):
    """A tenth is positive, more of the later tasks; a third is not measured, and some rows not at all."""
    generator = np.random.default_rng(seed)
    chance = generator.random((N, num_tasks))
    labels = np.where(chance < 0.05 + 0.1 * np.arange(num_tasks) / num_tasks, 1, 0).astype(np.int8)
    labels[generator.random((N, num_tasks)) < 0.33] = -1
    labels[::37] = -1
    return labels


LABELS = labels_of()
ROWS = np.arange(3, N)


def make(kind=PosNegTaskSampler, labels=LABELS, sizes=(12, 10, 6), seed=0, rows=ROWS):
    names = tuple(f"task {k}" for k in range(labels.shape[1]))
    return kind(TaskRows(labels, rows, names), BatchSizes(*sizes), seed)


def plans_of(sampler, rank, size, start=0, count=30):
    with rank_of(rank, size):
        return list(sampler.plans(start, count))


def drawn(plan, labels=LABELS, rows=ROWS):
    """(task, row, position) of each positive of a plan, one for each column."""
    found = []
    for column in range(plan.sizes.num_pos):
        (task,) = np.flatnonzero(plan.masks.pos[:, column])
        found.append((int(task), int(plan.rows[column]), int(plan.index[task, column])))
        assert (np.delete(plan.index[:, column], task) == 0).all()
    return found


@pytest.mark.parametrize("sizes", [(12, 10, 6), (12, 10, 0), (20, 8, 3), (7, 8, 0), (3, 8, 0), (1, 1, 1), (90, 8, 0)])
def test_a_plan_says_for_which_task_each_example_counts(sizes):
    for step, plan in enumerate(make(sizes=sizes).plans(0, 50)):
        num_pos, num_neg, num_dual = plan.sizes
        assert plan.step == step
        assert plan.shares is None
        assert (num_neg, num_dual) == sizes[1:]
        assert num_pos <= sizes[0]
        assert plan.masks.pos.shape == plan.index.shape == (5, num_pos)
        assert plan.masks.neg.shape == (5, num_neg)
        assert (plan.masks.dual_neg is None) == (num_dual == 0)
        for task, row, position in drawn(plan):
            mine = [r for r in ROWS if LABELS[r, task] == 1]
            assert mine[position] == row
        neg, dual = np.split(plan.rows[num_pos:], [num_neg])
        assert all((LABELS[row] == 0).any() for row in plan.rows[num_pos:])
        assert plan.masks.neg.tolist() == [[bool(LABELS[row, k] == 0) for row in neg] for k in range(5)]
        if num_dual:
            assert plan.masks.dual_neg.tolist() == [[bool(LABELS[row, k] == 0) for row in dual] for k in range(5)]
        assert len(set(neg)) == num_neg
        assert len(set(dual)) == num_dual


@pytest.mark.parametrize(("num_pos", "in_play", "each"), [(20, 5, 4), (24, 5, 4), (12, 3, 4), (7, 1, 7), (3, 1, 3)])
def test_the_tasks_in_play_take_turns_and_share_the_positives(num_pos, in_play, each):
    visits = Counter()
    for plan in make(sizes=(num_pos, 5, 0)).plans(0, 50):
        count = Counter(task for task, _, _ in drawn(plan))
        assert set(count.values()) == {each}
        assert len(count) == in_play
        visits.update(count.keys())
        assert max(visits.values()) - min(visits[k] for k in range(5)) <= 1


@pytest.mark.parametrize("num_pos", [20, 12, 3])
def test_every_task_goes_through_its_positives_pass_after_pass(num_pos):
    seen = {k: [] for k in range(5)}
    for plan in make(sizes=(num_pos, 5, 0)).plans(0, 400):
        for task in range(5):
            own = [position for k, _, position in drawn(plan) if k == task]
            assert len(set(own)) == len(own)
            seen[task] += own
    for task, positions in seen.items():
        count = int((LABELS[ROWS, task] == 1).sum())
        whole = np.array(positions[: len(positions) // count * count]).reshape(-1, count)
        assert len(whole) > 1
        assert (np.sort(whole, axis=1) == np.arange(count)).all()
        assert (whole[0] != whole[1]).any()


def test_a_task_with_few_positives_gives_all_of_them():
    labels = LABELS.copy()
    labels[labels[:, 2] == 1, 2] = 0
    labels[[10, 20, 30], 2] = 1
    sampler = make(labels=labels, sizes=(40, 5, 0))
    for plan in sampler.plans(0, 20):
        assert Counter(k for k, _, _ in drawn(plan)) == {0: 8, 1: 8, 2: 3, 3: 8, 4: 8}
    assert sampler.cap_message(1, asked=True) == (
        "A task gets up to 8 positives of a step. These tasks have fewer, so a step takes all of them: 'task 2' (3)."
    )
    assert sampler.cap_message(1, asked=False) is None
    assert make().cap_message(1, asked=True) is None


def test_a_task_that_is_rarely_measured_is_named():
    labels = LABELS.copy()
    labels[labels[:, 1] == 0, 1] = -1
    labels[[11, 22], 1] = 0
    message = make(labels=labels, sizes=(12, 10, 0)).cap_message(1, asked=False)
    assert "if it has none: 'task 1'. Raise `num_neg`" in message


@pytest.mark.parametrize("sizes", [(12, 10, 6), (20, 8, 0), (90, 8, 0), (3, 50, 0)])
def test_an_epoch_shows_every_positive_and_is_no_longer_than_that_takes(sizes):
    sampler = make(sizes=sizes)
    steps, negatives = len(sampler), len(sampler.negatives)

    def seen(count):
        return [{p for plan in sampler.plans(0, count) for k, _, p in drawn(plan) if k == task} for task in range(5)]

    assert [len(found) for found in seen(steps)] == list(sampler.num_positives)
    if steps > -(-negatives // sizes[1]):
        # a little shorter, and some task has not seen all
        assert [len(found) for found in seen(steps - 3)] != list(sampler.num_positives)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", [PosNegTaskSampler, UniformTaskSampler])
def test_ranks_take_disjoint_slices_of_the_global_batch(kind, size):
    sampler, whole = make(kind, sizes=(5, 7, 3)), make(kind, sizes=(5 * size, 7 * size, 3 * size))
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
        parts = [[p.rows] if kind is UniformTaskSampler else np.split(p.rows, np.cumsum(p.sizes)[:2]) for p in plans]
        rows = np.concatenate([np.concatenate(part) for part in zip(*parts, strict=True)])
        assert np.array_equal(rows, reference.rows)


@pytest.mark.parametrize("start", [0, 1, 74, 1234, 10**7])
@pytest.mark.parametrize("kind", [PosNegTaskSampler, UniformTaskSampler])
@pytest.mark.parametrize("sizes", [(12, 10, 6), (20, 10, 0)])
def test_a_step_is_the_same_wherever_one_starts(kind, start, sizes):
    sampler = make(kind, sizes=sizes)
    for plan in plans_of(sampler, 0, 1, start, 2000)[::137]:
        (alone,) = plans_of(sampler, 0, 1, plan.step, 1)
        assert np.array_equal(alone.rows, plan.rows)
        assert np.array_equal(alone.index, plan.index)
        assert np.array_equal(alone.masks.pos, plan.masks.pos)
        assert np.array_equal(alone.masks.neg, plan.masks.neg)


def test_the_seed_changes_tasks_positives_and_negatives():
    first, second = (list(make(seed=seed).plans(0, 50)) for seed in (0, 1))
    for part in (slice(0, 12), slice(12, None)):
        same = [a.rows[part] == b.rows[part] for a, b in zip(first, second, strict=True)]
        assert np.mean(same) < 0.1
    assert [a.masks.pos.any(1).tolist() for a in first] != [b.masks.pos.any(1).tolist() for b in second]


def test_two_tasks_with_the_same_labels_draw_in_different_orders():
    labels = np.repeat(LABELS[:, :1], 2, axis=1)
    plan = next(make(labels=labels, sizes=(20, 5, 0)).plans(0, 1))
    first, second = ([p for k, _, p in drawn(plan) if k == task] for task in (0, 1))
    assert sorted(first) != sorted(second)


def test_negatives_of_a_task_are_a_uniform_sample_of_its_measured_ones():
    sampler = make(sizes=(12, 10, 0))
    counts = np.zeros((N, 5))
    steps = 3000
    for plan in sampler.plans(0, steps):
        counts[plan.rows[plan.sizes.num_pos :]] += plan.masks.neg.T
    for task in range(5):
        is_neg = (LABELS[:, task] == 0) & (np.arange(N) >= 3)
        assert counts[~is_neg, task].sum() == 0
        expected = steps * 10 / len(sampler.negatives)
        assert np.abs(counts[is_neg, task] - expected).max() <= 1.0 + 0.05 * expected


# ------------------------------------------------------------------ uniform batches


def test_a_uniform_pass_shows_every_measured_example_once():
    sampler = make(UniformTaskSampler, sizes=(4, 6, 0))
    measured = [row for row in ROWS if (LABELS[row] >= 0).any()]
    assert len(sampler) == -(-len(measured) // 10)
    plans = list(sampler.plans(0, len(sampler)))
    rows = np.concatenate([plan.rows for plan in plans])[: len(measured)]
    assert sorted(rows) == measured
    for plan in plans:
        assert plan.sizes == (10, 10, 0)
        assert plan.masks.pos.tolist() == (LABELS[plan.rows].T == 1).tolist()
        assert plan.masks.neg.tolist() == (LABELS[plan.rows].T == 0).tolist()
        for task, column in zip(*np.nonzero(plan.masks.pos), strict=True):
            mine = [r for r in ROWS if LABELS[r, task] == 1]
            assert mine[plan.index[task, column]] == plan.rows[column]


# ------------------------------------------------------------------ what can't be


@pytest.mark.parametrize("kind", [PosNegTaskSampler, UniformTaskSampler])
@pytest.mark.parametrize(("value", "other", "name"), [(1, 0, "positive"), (0, -1, "negative")])
def test_a_task_without_a_class_is_named(kind, value, other, name):
    labels = LABELS.copy()
    labels[labels[:, 3] == value, 3] = other
    labels[0, 3] = value  # a row that does not train
    with pytest.raises(DataError, match=f"'task 3' has no {name} among the 397 training examples. Leave out"):
        make(kind, labels=labels)


def test_a_sampler_of_one_task_is_refused():
    with pytest.raises(ArgumentError, match=r"`sampling='full'` takes one task, but the labels have 5 columns"):
        sampler_of(TrainingPart(LABELS), "full", BatchSizes(1, 1), 0)


def test_too_many_negatives_a_step():
    with pytest.raises(DataError, match=r"One step takes 900 negatives .* has only"):
        len(make(sizes=(4, 900, 0)))
