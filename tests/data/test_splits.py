"""Stratified splits."""

import numpy as np
import pytest

from lightning_tpauc.data.splits import check_validation_source, stratified_fold, stratified_holdout
from lightning_tpauc.errors import ArgumentError, DataError

LABELS = (np.arange(200) % 10 == 0).astype(np.int8)


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
def test_holdout_keeps_the_share_of_positives(fraction):
    kept, held = stratified_holdout(LABELS, fraction, seed=1)
    assert np.array_equal(np.sort(np.concatenate([kept, held])), np.arange(200))
    assert len(held) == 200 * fraction
    assert LABELS[held].sum() == 20 * fraction
    assert (np.diff(kept) > 0).all()
    assert (np.diff(held) > 0).all()
    assert np.array_equal(held, stratified_holdout(LABELS, fraction, seed=1)[1])
    assert not np.array_equal(held, stratified_holdout(LABELS, fraction, seed=2)[1])


def test_folds_partition_the_set():
    folds = [stratified_fold(LABELS, 5, k, seed=1) for k in range(5)]
    assert np.array_equal(np.sort(np.concatenate([val for _, val in folds])), np.arange(200))
    for train, val in folds:
        assert np.array_equal(np.sort(np.concatenate([train, val])), np.arange(200))
        assert LABELS[val].sum() == 4


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 5])
def test_refuses_fractions(fraction):
    with pytest.raises(ArgumentError, match=rf"in \(0, 1\), but got {fraction}"):
        stratified_holdout(LABELS, fraction, seed=0)


def test_refuses_a_class_that_is_too_small():
    with pytest.raises(DataError, match=r"0.1 of 30 examples, 1 of them positive.*Choose another fraction"):
        stratified_holdout(np.eye(1, 30, dtype=np.int8)[0], 0.1, seed=0)
    with pytest.raises(DataError, match="Can't cut 25 folds: the smaller class has 20 examples"):
        stratified_fold(LABELS, 25, 0, seed=0)


@pytest.mark.parametrize(("num_folds", "fold"), [(1, 0), (5, 5), (5, -1)])
def test_refuses_folds(num_folds, fold):
    with pytest.raises(ArgumentError, match=f"but got fold {fold} of {num_folds}"):
        stratified_fold(LABELS, num_folds, fold, seed=0)


def test_validation_has_one_source():
    check_validation_source(None, None, None, None)
    check_validation_source(None, None, 5, 0)
    with pytest.raises(ArgumentError, match="one source, but got val_dataset and val_fraction"):
        check_validation_source([1], 0.1, None, None)
    with pytest.raises(ArgumentError, match="got val_fraction and num_folds"):
        check_validation_source(None, 0.1, 5, 0)
    with pytest.raises(ArgumentError, match="`num_folds` and `fold` together, but got 5 and None"):
        check_validation_source(None, None, 5, None)
