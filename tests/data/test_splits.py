"""Stratified splits."""

import re

import numpy as np
import pytest

from lightning_tpauc.data.splits import as_fraction, check_validation_source, cross_validation, holdout
from lightning_tpauc.errors import ArgumentError, DataError

LABELS = (np.arange(200) % 10 == 0).astype(np.int8)


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
def test_holdout_keeps_the_share_of_positives(fraction):
    kept, held = holdout(LABELS, fraction, seed=1)
    assert np.array_equal(np.sort(np.concatenate([kept, held])), np.arange(200))
    assert len(held) == 200 * fraction
    assert LABELS[held].sum() == 20 * fraction
    assert (np.diff(kept) > 0).all()
    assert (np.diff(held) > 0).all()
    assert np.array_equal(held, holdout(LABELS, fraction, seed=1)[1])
    assert not np.array_equal(held, holdout(LABELS, fraction, seed=2)[1])


def test_folds_partition_the_set():
    folds = [cross_validation(LABELS, 5, k, seed=1) for k in range(5)]
    assert np.array_equal(np.sort(np.concatenate([val for _, val in folds])), np.arange(200))
    for train, val in folds:
        assert np.array_equal(np.sort(np.concatenate([train, val])), np.arange(200))
        assert LABELS[val].sum() == 4


@pytest.mark.parametrize("num_positives", [2, 3, 4, 996, 998])
@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.9, 0.99])
def test_both_parts_have_both_classes(fraction, num_positives):
    labels = (np.arange(1000) < num_positives).astype(np.int8)
    for seed in range(5):
        kept, held = holdout(labels, fraction, seed)
        assert np.array_equal(np.sort(np.concatenate([kept, held])), np.arange(1000))
        assert len(held) == round(1000 * fraction)
        assert {*labels[kept]} == {*labels[held]} == {0, 1}
        assert np.array_equal(held, holdout(labels, fraction, seed)[1])


def test_splits_that_had_both_classes_are_what_scikit_learn_says():
    from sklearn.model_selection import train_test_split

    for seed in range(5):
        held = train_test_split(np.arange(200), test_size=0.1, random_state=seed, stratify=LABELS)[1]
        assert np.array_equal(holdout(LABELS, 0.1, seed)[1], np.sort(held))


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.longdouble, float])
def test_fractions_of_any_precision(kind):
    assert as_fraction(kind(0.3)) == pytest.approx(0.3, abs=0)
    assert type(as_fraction(kind(0.3))) is float


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 5, float("nan"), True, "0.3", np.float32(1), [0.1]])
def test_refuses_fractions(fraction):
    with pytest.raises(
        ArgumentError, match=re.escape(f"`val_fraction`, to be a number in (0, 1), but got {fraction!r}")
    ):
        holdout(LABELS, fraction, seed=0)


def test_refuses_a_class_that_is_too_small():
    with pytest.raises(DataError, match=r"0.1 of 30 examples, 1 of them positive.*Choose another fraction"):
        holdout(np.eye(1, 30, dtype=np.int8)[0], 0.1, seed=0)
    for labels in (np.zeros(30, dtype=np.int8), np.ones(30, dtype=np.int8)):
        with pytest.raises(DataError, match=r"0.1 of 30 examples, (0|30) of them positive.*: there is only one class"):
            holdout(labels, 0.1, seed=0)
    with pytest.raises(DataError, match="Can't cut 25 folds: the smaller class has 20 examples"):
        cross_validation(LABELS, 25, 0, seed=0)


@pytest.mark.parametrize(("num_folds", "fold"), [(1, 0), (5, 5), (5, -1), (5, 1.0), ("5", 1), (5, "1")])
def test_refuses_folds(num_folds, fold):
    with pytest.raises(ArgumentError, match=f"but got fold {fold!r} of {num_folds!r}"):
        cross_validation(LABELS, num_folds, fold, seed=0)


def test_validation_has_one_source():
    check_validation_source(None, None, None, None)
    check_validation_source(None, None, 5, 0)
    with pytest.raises(ArgumentError, match="one source, but got val_dataset and val_fraction"):
        check_validation_source([1], 0.1, None, None)
    with pytest.raises(ArgumentError, match="got val_fraction and num_folds"):
        check_validation_source(None, 0.1, 5, 0)
    with pytest.raises(ArgumentError, match="`num_folds` and `fold` together, but got 5 and None"):
        check_validation_source(None, None, 5, None)
