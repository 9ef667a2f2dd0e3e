"""Splits by groups beside scikit-learn's, and where groups come from."""

import numpy as np
import pytest
import torch
from sklearn.model_selection import StratifiedGroupKFold
from torch.utils.data import Subset, TensorDataset

from lightning_tpauc import PosNegDataModule
from lightning_tpauc.data.labels import as_groups
from lightning_tpauc.data.splits import cross_validation, holdout
from lightning_tpauc.errors import ArgumentError, DataError


def problem(seed=0, n=400, count=60, share=0.2):
    generator = np.random.default_rng(seed)
    groups = generator.integers(count, size=n)
    labels = (generator.random(n) < share).astype(np.int8)
    return labels, groups, np.arange(n, dtype=np.float32)[:, None]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
def test_a_holdout_parts_no_group_and_has_the_share_of_both_classes(seed, fraction):
    labels, groups, _ = problem(seed)
    kept, held = holdout(labels, fraction, seed, groups)
    assert sorted([*kept, *held]) == list(range(400))
    assert not set(groups[kept]) & set(groups[held])
    for value in (0, 1):
        assert (labels[held] == value).sum() / (labels == value).sum() == pytest.approx(fraction, abs=0.05)
    again = holdout(labels, fraction, seed, groups)
    assert (again[1] == held).all()
    assert not np.array_equal(holdout(labels, fraction, seed + 1, groups)[1], held)


def test_a_few_groups_with_positives_are_divided():
    labels, groups = np.zeros(1000, dtype=np.int8), np.arange(1000) // 5
    labels[[7, 502]] = 1  # two of 200 groups
    for seed in range(20):
        kept, held = holdout(labels, 0.1, seed, groups)
        assert labels[kept].sum() == labels[held].sum() == 1


def test_folds_are_those_of_scikit_learn():
    labels, groups, _ = problem(3)
    expected = StratifiedGroupKFold(4, shuffle=True, random_state=7).split(labels, labels, groups)
    seen = []
    for fold, (train, val) in enumerate(expected):
        own = cross_validation(labels, 4, fold, 7, groups)
        assert own[0].tolist() == sorted(train)
        assert own[1].tolist() == sorted(val)
        assert not set(groups[own[0]]) & set(groups[own[1]])
        seen += own[1].tolist()
    assert sorted(seen) == list(range(400))


def test_several_tasks_have_both_classes_in_both_parts():
    generator = np.random.default_rng(1)
    groups = generator.integers(50, size=500)
    labels = (generator.random((500, 3)) < [0.3, 0.1, 0.03]).astype(np.int8)
    labels[generator.random((500, 3)) < 0.2] = -1
    for kept, held in (holdout(labels, 0.3, 0, groups), cross_validation(labels, 3, 1, 0, groups)):
        assert not set(groups[kept]) & set(groups[held])
        for part in (kept, held):
            assert ((labels[part] == 1).any(axis=0) & (labels[part] == 0).any(axis=0)).all()


def test_a_data_module_of_several_tasks_splits_by_groups():
    generator = np.random.default_rng(1)
    groups, labels = generator.integers(50, size=500), (generator.random((500, 2)) < [0.3, 0.1]).astype(int)
    for how in ({"val_fraction": 0.3}, {"num_folds": 3, "fold": 2}):
        data = PosNegDataModule((np.zeros((500, 1)), labels), groups=groups, num_pos=4, num_neg=8, **how)
        data.setup("fit")
        part = data._prepared.training
        assert len(part.rows) + len(part.held_out) == 500
        assert not set(groups[part.rows]) & set(groups[part.held_out])


class Items(torch.utils.data.Dataset):
    """Items that say whose they are."""

    def __init__(self, x, y, groups):
        self.x, self.y, self.groups = x, y, groups

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return {"x": torch.from_numpy(self.x[row]), "patient": str(self.groups[row]), "label": int(self.y[row])}


@pytest.mark.parametrize("form", ["array", "list", "tensor", "words", "column", "attribute", "key", "subset"])
def test_where_groups_come_from(form):
    labels, groups, x = problem(2)
    pair, given = (x, labels), {"array": groups, "list": groups.tolist(), "tensor": torch.from_numpy(groups)}.get(form)
    if form == "words":
        given = [f"patient {g}" for g in groups]
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
    assert not set(own[part.rows]) & set(own[part.held_out])
    expected = holdout(labels, 0.25, 4, as_groups(groups))[1]
    if form in ("array", "list", "tensor", "attribute"):
        assert part.held_out.tolist() == expected.tolist()
    batch = next(iter(data.train_dataloader()))
    assert (batch.inputs["x"] if form in ("attribute", "key", "subset") else batch.inputs).shape == (15, 1)


def test_columns_of_groups_and_weights_are_no_inputs_of_any_part():
    pandas = pytest.importorskip("pandas")
    labels, groups, x = problem(2)
    table = pandas.DataFrame({"age": x[:, 0], "who": groups, "w": 1.0 + groups % 3})
    data = PosNegDataModule(
        (table, labels), test_dataset=(table, labels), predict_dataset=table[["age"]].to_numpy(),
        val_fraction=0.25, groups="who", sample_weight="w", num_pos=5, num_neg=10,
    )  # fmt: skip
    data.setup()
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader(), data.predict_dataloader()):
        assert next(iter(loader)).inputs.shape[1] == 1
    assert list(table.columns) == ["age", "who", "w"]
    assert set(data.positive_weights) == {1.0, 2.0, 3.0}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"groups": np.zeros(400), "val_fraction": 0.2},
            "of 1 groups have positives, and 1 have negatives. Pass finer",
        ),
        ({"groups": np.zeros(399), "val_fraction": 0.2}, r"`groups` to have one value for each of the 400 items"),
        ({"groups": [None] * 3 + [1] * 397, "val_fraction": 0.2}, "`groups` has no value for row 0, and for 3 of 400"),
        ({"groups": np.arange(400) % 3, "num_folds": 5, "fold": 1}, "Can't cut 5 folds by `groups`, .*: 3 of 3 groups"),
        ({"groups": "who", "val_fraction": 0.2}, "`groups='who'` is neither a column of the table, nor an attribute"),
    ],
)
def test_groups_that_do_not_do(options, words):
    labels, _, x = problem(2)
    with pytest.raises(DataError, match=words):
        PosNegDataModule(TensorDataset(torch.from_numpy(x), torch.from_numpy(labels)), **options).setup("fit")


def test_groups_without_a_split_are_refused():
    labels, groups, x = problem(2)
    with pytest.raises(ArgumentError, match="set `val_fraction`, or `num_folds` and `fold`, as well"):
        PosNegDataModule((x, labels), groups=groups).setup("fit")
