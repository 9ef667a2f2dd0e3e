"""Batches of distinct examples, pass after pass, and batches drawn by weights: frequencies, purity, ranks."""

from functools import partial

import numpy as np
import pytest

from lightning_tpauc import PosNegDataModule
from lightning_tpauc.data.sampler import SAMPLERS, BatchSizes, WeightedIndices, World, distinct_batches, most_distinct
from lightning_tpauc.data.seeding import Purpose, permute
from lightning_tpauc.errors import DataError, TPAUCWarning
from tests.helpers.worlds import training_of

# n >= 2 size: divisible or not, odd and even, barely two batches, above the sorted sizes
COVERED = [(64, 32), (65, 32), (71, 32), (10, 5), (11, 5), (9, 4), (7, 3), (100, 7), (1000, 96), (5003, 512), (5, 1)]


@pytest.mark.parametrize(("n", "size"), [*COVERED, (32, 32), (40, 32), (63, 32), (1, 1), (3, 2), (6000, 4000)])
def test_no_example_twice_in_a_batch(n, size):
    steps = max(20, 6 * n // size)
    batches = np.sort(distinct_batches(n, size, 0, steps, seed=4), axis=1)
    assert (np.diff(batches, axis=1) > 0).all()
    assert batches.min() >= 0
    assert batches.max() < n


def order_by_the_rule(n, size, seed, passes):
    """The rule in words, pass by pass: what the open batch already has is put off, within the first `size` places."""
    order = []
    for which in range(passes):
        fresh = permute(np.arange(n), np.array(which), n, seed=seed).tolist()
        held = set(order[len(order) - len(order) % size :])
        if held:
            head = fresh[:size]
            fresh[:size] = [x for x in head if x not in held] + [x for x in head if x in held]
        order += fresh
    return order


@pytest.mark.parametrize(("n", "size"), COVERED)
def test_follows_the_rule(n, size):
    passes = 7
    steps = passes * n // size
    drawn = distinct_batches(n, size, 0, steps, seed=5)
    assert drawn.ravel().tolist() == order_by_the_rule(n, size, 5, passes)[: steps * size]


@pytest.mark.parametrize(("n", "size"), [(64, 32), (71, 32), (9, 4), (40, 32), (5003, 512), (5000, 4999)])
def test_a_batch_does_not_depend_on_where_one_starts(n, size):
    batches = partial(distinct_batches, n, size, seed=1)
    together = batches(0, 40)
    assert all(np.array_equal(batches(t, t + 1)[0], together[t]) for t in range(40))
    assert np.array_equal(batches(13, 29), together[13:29])
    assert np.array_equal(batches(0, 40, slice(1, 4)), together[:, 1:4])


POS, NEG = np.arange(0, 40), np.arange(40, 300)


def draw_weights(seed=0):
    generator = np.random.default_rng(seed)
    return generator.gamma(2.0, size=len(POS)) + 0.2, generator.exponential(size=len(NEG)) + 1e-3


def weighted(kind, sizes, seed=5, weights=None):
    labels = np.repeat([1, 0], [len(POS), len(NEG)])
    return SAMPLERS[kind](training_of(labels, weights=np.concatenate(weights or draw_weights())), sizes, seed)


def plans(sampler, start, stop, world=None):
    return list(sampler.block(start, stop, world or World(0, 1)))


@pytest.mark.parametrize("size", [1, 3, 8])
def test_every_example_comes_in_a_pass_as_often_as_its_weight_says(size):
    weights = draw_weights()[0]
    indices = WeightedIndices(weights, size, seed=2, purpose=Purpose.POSITIVES)
    batches = indices.batches(0, 400 * indices.steps).reshape(400, -1)
    expected = weights / weights.sum() * indices.steps * size
    counts = np.stack([np.bincount(batch, minlength=len(weights)) for batch in batches])
    assert (counts >= np.floor(expected)).all()
    assert (counts <= np.ceil(expected)).all()
    # the mean of 400 passes, each rounded up or down
    share = expected - np.floor(expected)
    sigma = np.sqrt(share * (1 - share) / 400)
    assert (np.abs(counts.mean(axis=0) - expected) <= 4.5 * sigma + 1e-12).all()


def test_frequencies_of_positives_and_negatives_follow_the_weights():
    pos_weight, neg_weight = draw_weights()
    sampler = weighted("pos_neg", BatchSizes(4, 12, 7))
    rows = np.stack([plan.rows for plan in plans(sampler, 0, 6000)])
    for part, weight, first in (
        (rows[:, :4], pos_weight, 0),
        (rows[:, 4:16], neg_weight, 40),
        (rows[:, 16:], neg_weight, 40),
    ):
        share = np.bincount(part.ravel() - first, minlength=len(weight)) / part.size
        np.testing.assert_allclose(share, weight / weight.sum(), atol=2e-3)
    # the two draws of negatives are independent: they meet as often as chance has them
    meet = np.mean([len(np.intersect1d(row[4:16], row[16:])) for row in rows])
    p, q = (np.minimum(1, size * neg_weight / neg_weight.sum()) for size in (12, 7))
    assert meet == pytest.approx(float((p * q).sum()), rel=0.1)


@pytest.mark.parametrize(
    "weights", [[0.1] * 3, [0.3, 0.1, 0.1, 0.1], [2, 1, 1], [0.7, 0.1, 0.6], [1e-300, 1e-300, 1e-301]]
)
def test_no_positive_comes_twice_even_where_a_batch_holds_as_many_as_it_can(weights):
    weights = np.array(weights)
    size = most_distinct(weights)
    batches = WeightedIndices(weights, size, seed=1).batches(0, 3000)
    assert all(len(set(batch)) == size for batch in batches.tolist())
    share = np.bincount(batches.ravel(), minlength=len(weights)) / batches.size
    np.testing.assert_allclose(share, weights / weights.sum(), atol=0.01)


@pytest.mark.parametrize("kind", ["pos_neg", "uniform"])
@pytest.mark.parametrize("world", [2, 3])
def test_a_plan_is_a_function_of_the_step_and_ranks_share_one_batch(kind, world):
    # the sizes of one rank times the number of ranks are the same
    single = plans(weighted(kind, BatchSizes(6, 12, 6)), 0, 90)
    later = weighted(kind, BatchSizes(6, 12, 6))
    for start, stop in ((57, 90), (3, 4), (0, 3), (4, 57)):
        for plan in plans(later, start, stop):
            assert (plan.rows == single[plan.step].rows).all()
    ranks = [
        plans(weighted(kind, BatchSizes(6 // world, 12 // world, 6 // world)), 0, 90, World(rank, world))
        for rank in range(world)
    ]
    for step, whole in enumerate(single):
        parts = [ranks[rank][step] for rank in range(world)]
        ends = np.cumsum([plan.sizes for plan in parts], axis=1)
        for k in range(3):
            pieces = [plan.rows[end[k] - plan.sizes[k] : end[k]] for plan, end in zip(parts, ends, strict=True)]
            end = np.cumsum(whole.sizes)[k]
            assert np.concatenate(pieces).tolist() == whole.rows[end - whole.sizes[k] : end].tolist()
        assert np.concatenate([plan.index for plan in parts]).tolist() == whole.index.tolist()


def test_examples_of_weight_0_never_train():
    x = np.arange(300.0, dtype=np.float32)[:, None]
    weights = np.concatenate(draw_weights())
    weights[::3] = 0
    data = PosNegDataModule((x, (np.arange(300) < 40).astype(int)), num_pos=4, num_neg=20, sample_weight=weights)
    data.setup("fit")
    assert data.num_positives == int((weights[:40] > 0).sum())
    loader = data.train_dataloader()
    seen = np.concatenate([batch.inputs.numpy().ravel() for _ in range(40) for batch in loader])
    assert set(seen.astype(int)) < set(np.flatnonzero(weights))  # the lightest negatives have not come yet
    assert set(np.flatnonzero(weights[:40])) < set(seen.astype(int))
    scored = [np.concatenate([b.inputs.numpy().ravel() for b in loader]) for loader in data.scoring_dataloaders()]
    assert scored[0].astype(int).tolist() == np.flatnonzero(weights[:40]).tolist()
    assert (weights[scored[1].astype(int)] > 0).all()


def test_a_positive_that_outweighs_the_others_shortens_the_batch():
    weights = np.ones(300)
    weights[3] = 10.0
    data = PosNegDataModule(
        (np.zeros((300, 1)), (np.arange(300) < 40).astype(int)), num_pos=8, num_neg=20, sample_weight=weights
    )
    with pytest.warns(TPAUCWarning, match=r"A step has 4 positives instead of 8 .* 1/4 of the sum"):
        data.setup("fit")
    rows = [plan.rows[:4].tolist() for plan in data.batch_sampler().plans(0, 490)]
    assert all(len(set(batch)) == 4 for batch in rows)
    assert sum(batch.count(3) for batch in rows) == pytest.approx(490 * 4 * 10 / 49, abs=8)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.ones(299), r"`sample_weight` to have 300 values, .* not shape \(299,\)"),
        (np.where(np.arange(300) == 7, -0.5, 1.0), r"at least 0, but row 7 has -0\.5, and 1 of 300"),
        ((np.arange(300) >= 40).astype(float), "got 0 positive examples with a `sample_weight` above 0"),
        ((np.arange(300) < 40).astype(float), "got 0 negative examples with a `sample_weight` above 0"),
    ],
)
def test_weights_that_are_none(weights, words):
    data = PosNegDataModule((np.zeros((300, 1)), (np.arange(300) < 40).astype(int)), sample_weight=weights)
    with pytest.raises(DataError, match=words):
        data.setup("fit")
