"""The data module with labels of several tasks."""

import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from lightning_tpauc import NegativeStream, PosNegDataModule
from lightning_tpauc.errors import ArgumentError, DataError
from tests.helpers.worlds import rank_of

N, K = 240, 4
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(N, 3, generator=GENERATOR)
CHANCE = torch.rand(N, K, generator=GENERATOR)
Y = (torch.tensor([0.05, 0.1, 0.1, 0.2]) > CHANCE).float()
Y[torch.rand(N, K, generator=GENERATOR) < 0.2] = torch.nan
DATA = TensorDataset(X, Y)


def ready(train=DATA, stage="fit", **kwargs):
    datamodule = PosNegDataModule(train, **{"num_pos": 16, "num_neg": 12, **kwargs})
    datamodule.setup(stage)
    return datamodule


def same(first, second):
    parts = zip((first.index, *first.masks), (second.index, *second.masks), strict=True)
    tensors = torch.equal(first.inputs, second.inputs) and all(
        (a is None and b is None) or torch.equal(a, b) for a, b in parts
    )
    return tensors and first[2:6] == second[2:6]


# ------------------------------------------------------------------ training batches


@pytest.mark.parametrize("make", [lambda y: y.numpy(), lambda y: y.tolist(), lambda y: y])
def test_the_kind_of_labels_changes_nothing(make):
    expected = list(ready().train_dataloader())
    for datamodule in (ready((X, make(Y))), ready(X, targets=make(Y)), ready([(x, y) for x, y in zip(X, make(Y))])):  # noqa: B905
        assert all(map(same, datamodule.train_dataloader(), expected))


def test_columns_of_a_table():
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame(Y.numpy(), columns=["a", "b", "c", "d"])
    datamodule = ready((X, table), val_dataset=(X, table))
    datamodule.val_dataloader()
    assert datamodule.label_names == ("a", "b", "c", "d")
    assert ready(X, targets=table).label_names == ("a", "b", "c", "d")
    assert ready(X, targets=table[["b", "d"]]).num_positives == datamodule.num_positives[1::2]
    assert ready(X, targets=table[["b"]].fillna(0)).num_labels is None
    with pytest.raises(DataError, match="in the same order, a, b, c, d, but it has b, a, c, d"):
        ready((X, table), val_dataset=(X, table[["b", "a", "c", "d"]])).val_dataloader()


# ------------------------------------------------------------------ evaluation


def test_validation_batches_have_the_labels_of_all_tasks():
    expected = torch.where(Y.isnan(), -1, Y).long()
    loader = ready(val_dataset=DATA, batch_size=50).val_dataloader()
    target = torch.cat([batch.target for batch in loader])
    assert target.dtype == torch.int64
    assert torch.equal(target, expected)
    with rank_of(1, 2):
        last = list(ready(val_dataset=DATA, batch_size=50).val_dataloader())[-1]
        assert last.target.shape == (40, K)
        assert (last.target == -1).all()


# ------------------------------------------------------------------ what can't be


def test_a_task_without_a_class_is_named():
    y = Y.clone()
    y[y[:, 2] == 1, 2] = 0
    with pytest.raises(DataError, match=r"no positive of '2' among the 240 training examples\. Leave out such labels"):
        ready((X, y))
    with pytest.raises(DataError, match=r"Can't cut 2 parts, .*: 0 of 240 rows have positives of label 2"):
        ready((X, y), val_fraction=0.2)


def test_full_batches_and_streams_take_one_task():
    with pytest.raises(ArgumentError, match=r"`sampling='full'` .*, but the labels have 4 columns"):
        ready(sampling="full")
    positives = Subset(DATA, [row for row in range(N) if Y[row].nan_to_num().max() == 1])
    with pytest.raises(
        DataError, match="positives of one label beside a stream of `negatives`, but its labels have 4 columns"
    ):
        ready(positives, negatives=NegativeStream(DataLoader(list(X), batch_size=None)))


def test_as_many_positives_as_negatives_by_default():
    """The tasks share the positives; one task has a quarter of the batch for its own."""
    x = torch.arange(2000.0).reshape(-1, 1)
    y = torch.stack([x[:, 0] % 5 == 0, x[:, 0] % 7 == 0], dim=1).float()

    def sizes(labels, **kwargs):
        data = PosNegDataModule((x, labels), **kwargs)
        data.setup("fit")
        batch = next(iter(data.train_dataloader()))
        return batch.num_pos, batch.num_neg

    assert sizes(y[:, 0]) == (64, 192)
    assert sizes(y) == (128, 128)
    assert sizes(y, num_pos=32) == (32, 128)
    assert sizes(y, num_neg=50) == (128, 50)
    assert sizes(y, num_pos=64, num_neg=192) == (64, 192)
