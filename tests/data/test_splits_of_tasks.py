"""Splits by the labels of several tasks."""

import numpy as np
import pytest

from lightning_tpauc.data.splits import cross_validation, holdout
from lightning_tpauc.errors import ArgumentError, DataError


def labels_of(n, shares, missing=0.2, seed=0):
    generator = np.random.default_rng(seed)
    labels = (generator.random((n, len(shares))) < np.array(shares)).astype(np.int8)
    labels[generator.random(labels.shape) < missing] = -1
    return labels


NAMES = ("a", "b", "c", "d")
SHARES = (0.02, 0.1, 0.5, 0.97)
LABELS = labels_of(1000, SHARES)


def classes(labels):
    return np.hstack([labels == 1, labels == 0])


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5, 0.9])
def test_a_holdout_has_its_share_of_every_class(fraction):
    kept, held_out = holdout(LABELS, fraction, 3, names=NAMES)
    assert sorted([*kept, *held_out]) == list(range(1000))
    assert np.array_equal(kept, np.sort(kept))
    assert abs(len(held_out) - 1000 * fraction) <= 10
    exact = fraction * classes(LABELS).sum(0)
    assert (np.abs(classes(LABELS[held_out]).sum(0) - exact) <= 2 + 0.05 * classes(LABELS).sum(0)).all()
    assert np.abs(classes(LABELS[held_out]).sum(0) - exact)[0] <= 1  # the rarest comes first


def test_folds_partition_the_rows_and_share_every_class():
    parts = [cross_validation(LABELS, 5, fold, 3, names=NAMES) for fold in range(5)]
    assert sorted(np.concatenate([val for _, val in parts])) == list(range(1000))
    for train, val in parts:
        assert sorted([*train, *val]) == list(range(1000))
        assert np.abs(classes(LABELS[val]).sum(0) - classes(LABELS).sum(0) / 5).max() <= 8


def can_be_cut(labels):
    """Whether any two parts have all classes: all of them are tried."""
    sides = (np.arange(2 ** len(labels))[:, None] >> np.arange(len(labels))) & 1
    return bool(((sides @ classes(labels) > 0) & ((1 - sides) @ classes(labels) > 0)).all(axis=1).any())


@pytest.mark.parametrize("seed", range(60))
def test_two_of_a_class_are_enough_where_that_is_possible_at_all(seed):
    """Small sets with classes of two, as often as not of the same examples."""
    generator = np.random.default_rng(seed)
    labels = np.zeros((12, 4), dtype=np.int8)
    for task in range(4):
        labels[generator.choice(3 + 3 * task, 2, replace=False), task] = 1
    for fraction in (0.15, 0.5, 0.8):
        if can_be_cut(labels):
            for part in holdout(labels, fraction, seed, names=NAMES):
                assert classes(labels[part]).any(0).all()
        else:
            with pytest.raises(DataError, match=r"Found no 2 parts .* is left without a positive in one"):
                holdout(labels, fraction, seed, names=NAMES)


def test_the_seed_alone_decides():
    first, again, other = (holdout(LABELS, 0.3, seed, names=NAMES)[1] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert len(set(first) & set(other)) < 0.5 * len(first)


def test_examples_without_any_label_are_dealt_out_too():
    labels = np.vstack([LABELS[:100], np.full((300, 4), -1, dtype=np.int8)])
    kept, held_out = holdout(labels, 0.25, 0, names=NAMES)
    assert len(kept) + len(held_out) == 400
    assert abs((held_out >= 100).sum() - 75) <= 5


def test_too_few_of_a_class_are_named():
    labels = LABELS.copy()
    labels[labels[:, 3] == 0, 3] = -1
    with pytest.raises(DataError, match=r"'d' has no negative among the examples to split\. Leave out"):
        holdout(labels, 0.5, 0, names=NAMES)
    labels[:4, 3] = 0
    with pytest.raises(DataError, match=r"Can't cut 5 parts .* 'd' has 4 negative\(s\)\. Leave out"):
        cross_validation(labels, 5, 0, 0, names=NAMES)


def test_arguments_are_checked():
    with pytest.raises(ArgumentError, match="fold 3 of 3"):
        cross_validation(LABELS, 3, 3, 0, names=NAMES)
    with pytest.raises(ArgumentError, match="val_fraction"):
        holdout(LABELS, 1.5, 0, names=NAMES)


def test_a_large_set_takes_moments():
    labels = labels_of(200_000, (0.01, 0.05, 0.3, 0.6, *[0.1] * 10))
    kept, held_out = holdout(labels, 0.1, 0)
    assert abs(len(held_out) - 20_000) < 2_000
    assert classes(labels[kept]).any(0).all()
