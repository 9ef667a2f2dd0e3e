"""Batches drawn by weights: frequencies, distinct positives, purity, ranks; what is left as it was without weights."""

import numpy as np
import pytest

from lightning_tpauc import PosNegDataModule
from lightning_tpauc.data.core.batch_indices import BatchIndices, SampleWeights, WeightedIndices, most_distinct
from lightning_tpauc.data.core.sampler import BatchSizes, World, make_sampler
from lightning_tpauc.data.core.seeding import Purpose
from lightning_tpauc.errors import ArgumentError, DataError, TPAUCWarning

POS, NEG = np.arange(0, 40), np.arange(40, 300)


def draw_weights(seed=0):
    generator = np.random.default_rng(seed)
    return generator.gamma(2.0, size=len(POS)) + 0.2, generator.exponential(size=len(NEG)) + 1e-3


def weighted(kind, sizes, seed=5, weights=None):
    return make_sampler(kind, POS, NEG, sizes, seed, weights=SampleWeights(*(weights or draw_weights())))


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


def test_uniform_batches_follow_the_weights_of_all_examples():
    weights = np.concatenate(draw_weights())
    sampler = weighted("uniform", BatchSizes(4, 12))
    found = plans(sampler, 0, 5000)
    share = np.bincount(np.concatenate([plan.rows for plan in found]), minlength=300) / 16 / 5000
    np.testing.assert_allclose(share, weights / weights.sum(), atol=2e-3)
    for plan in found[:50]:
        assert (plan.rows[: plan.sizes.num_pos] < 40).all()
        assert (plan.rows[plan.sizes.num_pos :] >= 40).all()
        assert (POS[plan.index] == plan.rows[: plan.sizes.num_pos]).all()


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


def test_other_seeds_give_other_orders():
    first, other = (np.stack([p.rows for p in plans(weighted("pos_neg", BatchSizes(4, 12), s), 0, 20)]) for s in (1, 2))
    assert (first == other).mean() < 0.2


def test_without_weights_the_order_is_what_it_was():
    x, y = np.zeros((300, 2), dtype=np.float32), (np.arange(300) < 40).astype(int)
    data = PosNegDataModule((x, y), num_pos=6, num_neg=20, num_dual_neg=9, seed=11, sample_weight=None, groups=None)
    data.setup("fit")
    for plan in data.batch_sampler().plans(0, 40):
        drawn = [
            BatchIndices(n, size, 11, purpose).batches(plan.step, plan.step + 1)[0] + first
            for n, size, purpose, first in (
                (40, 6, Purpose.POSITIVES, 0),
                (260, 20, Purpose.NEGATIVES, 40),
                (260, 9, Purpose.DUAL_NEGATIVES, 40),
            )
        ]
        assert (plan.rows == np.concatenate(drawn)).all()


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


def test_negatives_that_are_scored_follow_the_weights():
    x = np.arange(300.0, dtype=np.float32)[:, None]
    weights = np.concatenate(draw_weights())
    data = PosNegDataModule((x, (np.arange(300) < 40).astype(int)), num_pos=4, num_neg=20, sample_weight=weights)
    data.setup("fit")
    scored = np.concatenate([b.inputs.numpy().ravel() for b in data.scoring_dataloaders()[1]]).astype(int)
    expected = weights[40:] / weights[40:].sum() * 260
    assert len(scored) == 260
    assert (np.abs(np.bincount(scored - 40, minlength=260) - expected) < 1).all()


def test_a_positive_that_outweighs_the_others_shortens_the_batch():
    weights = np.ones(300)
    weights[3] = 10.0
    data = PosNegDataModule(
        (np.zeros((300, 1)), (np.arange(300) < 40).astype(int)), num_pos=8, num_neg=20, sample_weight=weights
    )
    with pytest.warns(TPAUCWarning, match=r"A step has 4 positives instead of 8 .* 1/4 of their sum"):
        data.setup("fit")
    rows = [plan.rows[:4].tolist() for plan in data.batch_sampler().plans(0, 490)]
    assert all(len(set(batch)) == 4 for batch in rows)
    assert sum(batch.count(3) for batch in rows) == pytest.approx(490 * 4 * 10 / 49, abs=8)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.ones(299), r"`sample_weight` to have one value for each of the 300 items .* got shape \(299,\)"),
        (np.where(np.arange(300) == 7, -0.5, 1.0), r"at least 0, but row 7 has -0\.5, and 1 of 300"),
        (np.where(np.arange(300) == 9, np.nan, 1.0), r"at least 0, but row 9 has nan"),
        (["heavy"] * 300, "at least 0, but row 0 has .*heavy"),
        ((np.arange(300) >= 40).astype(float), "No positive training example has a `sample_weight` above 0"),
        ((np.arange(300) < 40).astype(float), "No negative training example has a `sample_weight` above 0"),
        ("age", "`sample_weight='age'` is neither a column of the table"),
    ],
)
def test_weights_that_are_none(weights, words):
    data = PosNegDataModule((np.zeros((300, 1)), (np.arange(300) < 40).astype(int)), sample_weight=weights)
    with pytest.raises(DataError, match=words):
        data.setup("fit")


def test_full_batches_refuse_weights():
    data = PosNegDataModule(
        (np.zeros((300, 1)), (np.arange(300) < 40).astype(int)), sampling="full", sample_weight=np.ones(300)
    )
    with pytest.raises(ArgumentError, match=r"but FullBatch \(`sampling='full'`\) takes each once in every step"):
        data.setup("fit")


def test_weights_of_several_tasks_are_refused():
    labels = np.stack([np.arange(300) < 40, np.arange(300) % 7 == 0], axis=1).astype(int)
    with pytest.raises(ArgumentError, match=r"of one task, but the labels have 2 columns\. Leave it out"):
        PosNegDataModule((np.zeros((300, 1)), labels), sample_weight=np.ones(300)).setup("fit")
