"""Splits stratified by one label, by groups and by several labels; and where groups come from."""

import numpy as np
import pytest
import torch
from sklearn.model_selection import StratifiedGroupKFold, train_test_split
from torch.utils.data import Subset, TensorDataset

from lightning_tpauc import PosNegDataModule
from lightning_tpauc.data.splits import cross_validation, holdout
from lightning_tpauc.errors import ArgumentError, DataError
from lightning_tpauc.functional.checks import as_groups

LABELS = (np.arange(200) % 10 == 0).astype(np.int8)


def assert_parts(parts, count):
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(count))
    assert all((np.diff(part) > 0).all() for part in parts)


# ---------------------------------------------------------------- one label


@pytest.mark.parametrize("num_positives", [2, 3, 998])
@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.99])
def test_both_parts_have_both_classes(fraction, num_positives):
    labels = (np.arange(1000) < num_positives).astype(np.int8)
    for seed in range(5):
        kept, held = holdout(labels, fraction, seed)
        assert_parts((kept, held), 1000)
        assert len(held) == round(1000 * fraction)
        assert {*labels[kept]} == {*labels[held]} == {0, 1}


def test_splits_that_had_both_classes_are_what_scikit_learn_says():
    for seed in range(5):
        held = train_test_split(np.arange(200), test_size=0.1, random_state=seed, stratify=LABELS)[1]
        assert np.array_equal(holdout(LABELS, 0.1, seed)[1], np.sort(held))


@pytest.mark.parametrize("fraction", [0.0, 1.0, 5, float("nan"), True, "0.3", [0.1]])
def test_refuses_fractions(fraction):
    with pytest.raises(ArgumentError, match=r"`val_fraction` to be a number in \(0, 1\), but got"):
        PosNegDataModule(val_fraction=fraction)


def test_refuses_fractions_that_leave_nothing_to_train():
    with pytest.raises(ArgumentError, match=r"'val_fraction': 0\.6, 'calibration_fraction': 0\.4"):
        PosNegDataModule(val_fraction=0.6, calibration_fraction=0.4)


def test_refuses_a_class_that_is_too_small():
    with pytest.raises(DataError, match=r"0.1 of 30 examples, .*: 1 of 30 rows have positives, and 29 have negatives"):
        holdout(np.eye(1, 30, dtype=np.int8)[0], 0.1, seed=0)
    with pytest.raises(DataError, match=r"0.1 of 30 examples, .*: 0 of 30 rows have positives"):
        holdout(np.zeros(30, dtype=np.int8), 0.1, seed=0)
    with pytest.raises(DataError, match=r"Can't cut 25 folds, .*: 20 of 200 rows have positives"):
        cross_validation(LABELS, 25, 0, seed=0)


# ---------------------------------------------------------------- groups


def problem(seed=0, n=400, count=60, share=0.2):
    generator = np.random.default_rng(seed)
    groups = generator.integers(count, size=n)
    return (generator.random(n) < share).astype(np.int8), groups, np.arange(n, dtype=np.float32)[:, None]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fraction", [0.1, 0.5])
def test_a_holdout_parts_no_group_and_has_the_share_of_both_classes(seed, fraction):
    labels, groups, _ = problem(seed)
    kept, held = holdout(labels, fraction, seed, groups)
    assert_parts((kept, held), 400)
    assert not set(groups[kept]) & set(groups[held])
    for value in (0, 1):
        assert (labels[held] == value).sum() / (labels == value).sum() == pytest.approx(fraction, abs=0.05)
    assert (holdout(labels, fraction, seed, groups)[1] == held).all()
    assert not np.array_equal(holdout(labels, fraction, seed + 1, groups)[1], held)


def test_a_few_groups_with_positives_are_divided():
    labels, groups = np.zeros(1000, dtype=np.int8), np.arange(1000) // 5
    labels[[7, 502]] = 1  # two of 200 groups
    for seed in range(20):
        kept, held = holdout(labels, 0.1, seed, groups)
        assert labels[kept].sum() == labels[held].sum() == 1


def test_folds_of_groups_are_those_of_scikit_learn():
    labels, groups, _ = problem(3)
    expected = StratifiedGroupKFold(4, shuffle=True, random_state=7).split(labels, labels, groups)
    for fold, parts in enumerate(expected):
        own = cross_validation(labels, 4, fold, 7, groups)
        assert [part.tolist() for part in own] == [sorted(part) for part in parts]


def test_several_labels_have_both_classes_in_both_parts_of_groups():
    generator = np.random.default_rng(1)
    groups = generator.integers(50, size=500)
    labels = (generator.random((500, 3)) < [0.3, 0.1, 0.03]).astype(np.int8)
    labels[generator.random((500, 3)) < 0.2] = -1
    for parts in (holdout(labels, 0.3, 0, groups), cross_validation(labels, 3, 1, 0, groups)):
        assert not set(groups[parts[0]]) & set(groups[parts[1]])
        assert all(classes(labels[part]).any(axis=0).all() for part in parts)


class Items(torch.utils.data.Dataset):
    """Items that say whose they are."""

    def __init__(self, x, y, groups):
        self.x, self.y, self.groups = x, y, groups

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return {"x": torch.from_numpy(self.x[row]), "patient": str(self.groups[row]), "label": int(self.y[row])}


@pytest.mark.parametrize("form", ["array", "list", "words", "column", "attribute", "key", "subset"])
def test_where_groups_come_from(form):
    labels, groups, x = problem(2)
    pair, given = (x, labels), {"array": groups, "list": groups.tolist()}.get(form)
    if form == "words":
        given = np.array([f"patient {g}" if g % 2 else int(g) for g in groups], dtype=object)  # as a column has them
    if form == "column":
        pandas = pytest.importorskip("pandas")
        pair, given = (pandas.DataFrame({"age": x[:, 0], "who": [f"p{g}" for g in groups]}), labels), "who"
    if form in ("attribute", "key", "subset"):
        pair, given = Items(x, labels, groups), "patient" if form == "key" else "groups"
    if form == "subset":
        pair = Subset(pair, range(399, -1, -1))
    data = PosNegDataModule(pair, val_fraction=0.25, groups=given, split_seed=4, num_pos=5, num_neg=10)
    data.setup("fit")
    own = groups[::-1] if form == "subset" else groups
    part = data._prepared.training
    assert not set(own[part.rows]) & set(own[part.parts["val"]])
    if form in ("array", "list", "attribute"):
        assert part.parts["val"].tolist() == holdout(labels, 0.25, 4, as_groups(groups).numpy())[1].tolist()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"groups": np.zeros(400), "val_fraction": 0.2},
            "of 1 groups have positives, and 1 have negatives. .* finer groups",
        ),
        ({"groups": np.arange(400) % 3, "num_folds": 5, "fold": 1}, "Can't cut 5 folds by `groups`, .*: 3 of 3 groups"),
        ({"groups": "who", "val_fraction": 0.2}, "`groups='who'` is neither a column of the table, nor an attribute"),
    ],
)
def test_groups_that_do_not_do(options, words):
    labels, _, x = problem(2)
    with pytest.raises(DataError, match=words):
        PosNegDataModule(TensorDataset(torch.from_numpy(x), torch.from_numpy(labels)), **options).setup("fit")


# ---------------------------------------------------------------- several labels

NAMES = ("a", "b", "c", "d")


def labels_of(n, shares, missing=0.2, seed=0):
    generator = np.random.default_rng(seed)
    labels = (generator.random((n, len(shares))) < np.array(shares)).astype(np.int8)
    labels[generator.random(labels.shape) < missing] = -1
    return labels


SEVERAL = labels_of(1000, (0.02, 0.1, 0.5, 0.97))


def classes(labels):
    return np.hstack([labels == 1, labels == 0])


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
def test_a_holdout_has_its_share_of_every_class(fraction):
    kept, held = holdout(SEVERAL, fraction, 3, names=NAMES)
    assert_parts((kept, held), 1000)
    assert abs(len(held) - 1000 * fraction) <= 10
    misses = np.abs(classes(SEVERAL[held]).sum(0) - fraction * classes(SEVERAL).sum(0))
    assert (misses <= 2 + 0.05 * classes(SEVERAL).sum(0)).all()
    assert misses[0] <= 1  # the rarest comes first
    assert np.array_equal(held, holdout(SEVERAL, fraction, 3)[1])
    assert not np.array_equal(held, holdout(SEVERAL, fraction, 2)[1])


def test_folds_partition_the_rows_and_share_every_class():
    parts = [cross_validation(SEVERAL, 5, fold, 3, names=NAMES) for fold in range(5)]
    assert sorted(np.concatenate([val for _, val in parts])) == list(range(1000))
    for train, val in parts:
        assert_parts((train, val), 1000)
        assert np.abs(classes(SEVERAL[val]).sum(0) - classes(SEVERAL).sum(0) / 5).max() <= 8


def can_be_cut(labels):
    """Whether any two parts have all classes: all of them are tried."""
    sides = (np.arange(2 ** len(labels))[:, None] >> np.arange(len(labels))) & 1
    return bool(((sides @ classes(labels) > 0) & ((1 - sides) @ classes(labels) > 0)).all(axis=1).any())


@pytest.mark.parametrize("seed", range(40))
def test_two_of_a_class_are_enough_where_that_is_possible_at_all(seed):
    """Small sets with classes of two, as often as not of the same examples."""
    generator = np.random.default_rng(seed)
    labels = np.zeros((12, 4), dtype=np.int8)
    for label in range(4):
        labels[generator.choice(3 + 3 * label, 2, replace=False), label] = 1
    for fraction in (0.15, 0.5, 0.8):
        if can_be_cut(labels):
            for part in holdout(labels, fraction, seed, names=NAMES):
                assert classes(labels[part]).any(0).all()
        else:
            with pytest.raises(DataError, match=r"Can't cut 2 parts, .*: 2 of 12 rows have positives of label [abcd],"):
                holdout(labels, fraction, seed, names=NAMES)


def test_too_few_of_a_class_are_named():
    labels = SEVERAL.copy()
    labels[labels[:, 3] == 0, 3] = -1
    with pytest.raises(DataError, match="of label d, and 0 have negatives"):
        holdout(labels, 0.5, 0, names=NAMES)
    labels[:4, 3] = 0
    with pytest.raises(DataError, match=r"Can't cut 5 parts, .* of label d, and 4 have negatives.*leave out"):
        cross_validation(labels, 5, 0, 0, names=NAMES)
