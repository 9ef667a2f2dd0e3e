"""A part that neither trains nor validates."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import TensorDataset

from lightning_tpauc import PosNegDataModule
from lightning_tpauc.errors import ArgumentError, DataError, TPAUCWarning
from tests.helpers.items import Items

GENERATOR = np.random.default_rng(0)
N = 600
GROUPS = GENERATOR.integers(120, size=N)
X = np.arange(N, dtype=np.float32)[:, None]
ONE = (GENERATOR.random(N) < 0.3).astype(int)
SEVERAL = (GENERATOR.random((N, 3)) < [0.4, 0.2, 0.1]).astype(float)
SEVERAL[GENERATOR.random((N, 3)) < 0.1] = np.nan


def ready(train, stage="fit", **kwargs):
    data = PosNegDataModule(train, **{"num_pos": 6, "num_neg": 10, **kwargs})
    data.setup(stage)
    return data


def rows_of(loader):
    return torch.cat([batch.inputs.reshape(-1) for batch in loader]).long().tolist()


def parts_of(data):
    """Rows that train, validate and calibrate; the number of a row is its only feature."""
    loaders = data.scoring_dataloaders(), [data.val_dataloader()], [data.calibration_dataloader()]
    return [sorted({row for loader in part for row in rows_of(loader)}) for part in loaders]


@pytest.mark.parametrize("split", [{"val_fraction": 0.25}, *({"num_folds": 3, "fold": fold} for fold in range(3))])
@pytest.mark.parametrize("groups", [None, GROUPS])
@pytest.mark.parametrize("y", [ONE, SEVERAL])
def test_parts_share_no_row_and_no_group_and_have_both_classes(y, groups, split):
    data = ready((X, y), groups=groups, calibration_fraction=0.2, **split)
    parts = parts_of(data)
    if y is ONE:
        assert sorted([row for part in parts for row in part]) == list(range(N))
    for k, part in enumerate(parts):
        for other in parts[k + 1 :]:
            names = (part, other) if groups is None else (GROUPS[part], GROUPS[other])
            assert not set(names[0]) & set(names[1])
        columns = y[part].reshape(len(part), -1).T
        assert all({0, 1} <= set(column) for column in columns)
    assert len(parts[2]) == pytest.approx(0.2 * N, abs=0.03 * N)
    if "val_fraction" in split:  # both are shares of the whole
        assert len(parts[1]) == pytest.approx(0.25 * N, abs=0.03 * N)
    else:
        assert parts[2] == parts_of(ready((X, y), groups=groups, calibration_fraction=0.2, num_folds=3, fold=0))[2]
    loader = data.calibration_dataloader()
    if groups is not None:
        same = GROUPS[loader.rows][:, None] == GROUPS[loader.rows]
        assert np.array_equal(loader.groups[:, None] == loader.groups, same)
    targets = torch.cat([batch.target for batch in loader]).numpy()
    assert np.array_equal(targets, np.nan_to_num(y[rows_of(loader)], nan=-1))


def test_validation_stays_as_it_is_without_a_share_to_calibrate():
    data = ready((X, ONE), val_fraction=0.25)
    assert data.calibration_dataloader() is None
    own = ready((X, ONE), val_fraction=0.25, calibration_dataset=(X[:50], ONE[:50]))
    assert rows_of(own.val_dataloader()) == rows_of(data.val_dataloader())
    assert rows_of(own.calibration_dataloader()) == list(range(50))
    assert own.calibration_dataloader().groups is None


def table(rows=slice(None)):
    return pd.DataFrame({"x": X[rows, 0], "died": ONE[rows], "who": [f"P{g}" for g in GROUPS[rows]]})


@pytest.mark.filterwarnings("ignore:.*are in `train_dataset` too")
@pytest.mark.parametrize("form", ["table", "attribute", "key"])
def test_a_name_of_groups_holds_for_all_parts(form):
    def part(rows):
        if form == "table":
            return table(rows)
        x, y, own = X[rows], ONE[rows], GROUPS[rows]
        if form == "attribute":
            return Items(lambda k: (torch.from_numpy(x[k]), int(y[k])), len(x), who=own)
        return Items(lambda k: {"x": float(x[k, 0]), "died": int(y[k]), "who": str(own[k])}, len(x))

    named = {"targets": None if form == "attribute" else "died", "groups": "who"}
    parts = [part(slice(start, start + 150)) for start in (0, 150, 300, 450)]
    data = PosNegDataModule(parts[0], *parts[1:3], calibration_dataset=parts[3], num_pos=6, num_neg=10, **named)
    data.setup()
    for start, loader in ((300, data.test_dataloader()), (450, data.calibration_dataloader())):
        own = GROUPS[start : start + 150]
        assert np.array_equal(loader.groups[:, None] == loader.groups, own[:, None] == own)
    assert (data.val_dataloader().groups is None) == (form == "key")  # all items would have to be read


def test_groups_that_train_as_well_are_named():
    data = ready(table(slice(300)), targets="died", groups="who", calibration_dataset=table(slice(250, 400)))
    shared = {f"P{g}" for g in GROUPS[:300]} & {f"P{g}" for g in GROUPS[250:400]}
    with pytest.warns(TPAUCWarning, match=f"{len(shared)} groups of `calibration_dataset`, such as {min(shared)}, are"):
        data.calibration_dataloader()


def test_a_calibration_set_without_the_groups_is_refused_and_a_test_set_has_none():
    without = table(slice(300, 400)).drop(columns="who")
    data = ready(table(slice(300)), targets="died", groups="who", test_dataset=without, calibration_dataset=without)
    assert data.test_dataloader().groups is None
    with pytest.raises(DataError, match=r"`groups='who'` is neither a column .* of `calibration_dataset`"):
        data.calibration_dataloader()


def test_examples_that_chose_something_calibrate_nothing():
    parts = (X[:100], ONE[:100]), (X[100:200], ONE[100:200])
    for part, other in enumerate(("train", "val")):
        data = ready(parts[0], val_dataset=parts[1], calibration_dataset=tuple(map(np.copy, parts[part])))
        with pytest.raises(DataError, match=f"`calibration_dataset` and `{other}_dataset` hold the same examples"):
            data.calibration_dataloader()


def test_a_test_set_in_which_a_group_is_missing_is_refused():
    some = table(slice(300, 400)).assign(who=[None, *["P1"] * 99])
    data = ready(table(slice(300)), targets="died", groups="who", test_dataset=some)
    with pytest.raises(ArgumentError, match="`groups` has no value for row 0"):
        data.test_dataloader()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"calibration_fraction": 0.5, "calibration_dataset": X}, "calibration set has one source"),
        ({"calibration_fraction": 1.5}, r"`calibration_fraction` to be a number in \(0, 1\), but got 1.5"),
    ],
)
def test_refuses_arguments(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        PosNegDataModule((X, ONE), **arguments)


def test_a_share_of_a_stream_is_refused():
    positives = TensorDataset(torch.from_numpy(X[ONE == 1]))
    data = PosNegDataModule(
        positives, negatives=torch.utils.data.DataLoader(X, batch_size=None), calibration_fraction=0.2
    )
    with pytest.raises(ArgumentError, match="`calibration_fraction` can't split a stream of `negatives`"):
        data.setup("fit")
