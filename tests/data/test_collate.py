"""Items that differ in size, and the other arguments of a DataLoader."""

import random
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_sequence
from torch.utils.data import IterableDataset

from lightning_tpauc import PosNegDataModule
from lightning_tpauc.data import EvalBatch
from lightning_tpauc.data.loader import Position
from lightning_tpauc.errors import DataError
from tests.helpers.items import Items

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*use of fork.*")

N = 40
TARGETS = [int(row % 4 == 1) for row in range(N)]


def words(row):
    """Row k is as long as k says, and its entries are k + 1."""
    return torch.full((1 + row % 7,), row + 1)


def labelled(row):
    return words(row), TARGETS[row]


def pad(items):
    """As it stands in many a script."""
    inputs, labels = zip(*items, strict=True)
    return pad_sequence(inputs, batch_first=True), torch.tensor(labels)


def pad_with_lengths(items):
    inputs, labels = pad(items)
    return inputs, torch.tensor([len(item[0]) for item in items]), labels


def pad_to_mapping(items):
    inputs, labels = pad(items)
    return {"ids": inputs, "labels": labels}


def pad_alone(items):
    return pad_sequence(items, batch_first=True)


def first_of(inputs):
    """Which rows a padded batch holds."""
    return (inputs[:, 0] - 1).tolist()


def ready(dataset=None, stage="fit", **kwargs):
    sizes = {"num_pos": 3, "num_neg": 5, "num_dual_neg": 4, "batch_size": 6}
    datamodule = PosNegDataModule(Items(labelled, N) if dataset is None else dataset, **{**sizes, **kwargs})
    datamodule.setup(stage)
    return datamodule


def all_batches(datamodule):
    names = ("train", "val", "test", "predict")
    loaders = [getattr(datamodule, f"{name}_dataloader")() for name in names]
    return [batch for loader in (*loaders, *datamodule.scoring_dataloaders()) for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate_fn", [pad, pad_with_lengths, pad_to_mapping])
def test_every_loader_collates_so_and_leaves_the_labels_out(workers, collate_fn):
    whole = Items(labelled, N)
    datamodule = PosNegDataModule(
        whole, None, whole, whole, val_fraction=0.25, collate_fn=collate_fn, num_workers=workers, num_pos=3, num_neg=5
    )
    datamodule.setup()
    seen = 0
    for batch in all_batches(datamodule):
        inputs = batch.inputs
        if collate_fn is pad_with_lengths:
            assert type(inputs) is tuple
            inputs, lengths = inputs
            assert lengths.tolist() == [1 + row % 7 for row in first_of(inputs)]
        if collate_fn is pad_to_mapping:
            (inputs,) = inputs.values()
        expected = pad_sequence([words(row) for row in first_of(inputs)], batch_first=True)
        assert torch.equal(inputs, expected)
        if isinstance(batch, EvalBatch):
            known = [TARGETS[row] for row in first_of(inputs)]
            assert batch.target.tolist() in (known, [-1] * len(known))  # nobody looks for labels to predict
        else:
            assert [TARGETS[row] for row in first_of(inputs)] == [1] * batch.num_pos + [0] * (
                len(inputs) - batch.num_pos
            )
        seen += 1
    assert seen > 6
    datamodule.teardown("fit")


def test_without_one_the_remedy_is_named():
    with pytest.raises(DataError, match=r"Items of type Tensor can't be put into one batch .*Pass a `collate_fn`"):
        next(iter(ready().train_dataloader()))


class Two(NamedTuple):
    inputs: torch.Tensor
    labels: torch.Tensor


@pytest.mark.parametrize(
    ("collate_fn", "check"),
    [
        (lambda items: pad(items)[0], lambda inputs: inputs.shape[0] == 12),
        (lambda items: list(pad(items)), lambda inputs: inputs.shape[0] == 12),
        (lambda items: (pad(items)[0], np.array([[y] for _, y in items])), lambda inputs: inputs.shape[0] == 12),
        (lambda items: Two(*pad(items)), lambda inputs: type(inputs) is Two),
        (
            lambda items: (pack_sequence([x for x, _ in items], enforce_sorted=False), pad(items)[1]),
            lambda inputs: isinstance(inputs, PackedSequence),
        ),
        (lambda items: [x for x, _ in items] + [[y for _, y in items]], lambda inputs: len(inputs) == 12),
    ],
    ids=["inputs", "list", "column", "named", "packed", "unbatched"],
)
def test_what_may_be_returned(collate_fn, check):
    batch = next(iter(ready(collate_fn=collate_fn).train_dataloader()))
    assert check(batch.inputs)


@pytest.mark.parametrize(
    "collate_fn",
    [
        lambda items: pad_with_lengths(items)[:2],
        lambda items: (pad(items)[1], pad(items)[0]),
        lambda items: (pad(items)[0], 1 - pad(items)[1]),
    ],
    ids=["no labels", "labels first", "other labels"],
)
def test_a_tuple_without_the_labels_is_refused(collate_fn):
    with pytest.raises(
        DataError, match=r"`collate_fn` to return all 12 items .* does not hold the labels of the items"
    ):
        next(iter(ready(collate_fn=collate_fn).train_dataloader()))


def test_a_mapping_keeps_the_labels_in_the_order_of_the_items():
    """As of texts that are sorted by their length for `pack_padded_sequence`."""

    def by_length(items):
        return pad_to_mapping(sorted(items, key=lambda item: len(item[0])))

    with pytest.raises(DataError, match=r"all 12 items in their order, .* does not hold the labels of the items"):
        next(iter(ready(collate_fn=by_length).train_dataloader()))


@pytest.mark.parametrize(
    ("unlabelled", "collate_fn"),
    [(Items(words, N), pad_alone), (Items(lambda row: (words(row), 1 + row % 7), N), pad)],
    ids=["inputs", "tuples"],
)
def test_predicting_without_labels(unlabelled, collate_fn):
    """Items come as the data set has them."""
    train = Items(lambda row: (words(row), 1 + row % 7, TARGETS[row]), N)
    datamodule = PosNegDataModule(train, predict_dataset=unlabelled, collate_fn=collate_fn, batch_size=6)
    datamodule.setup("predict")
    batches = list(datamodule.predict_dataloader())
    inputs = [batch.inputs[0] if isinstance(batch.inputs, tuple) else batch.inputs for batch in batches]
    assert [row for part in inputs for row in first_of(part)] == list(range(N))
    assert {int(t) for batch in batches for t in batch.target} == {-1}


def masked(items):
    """Draws from all three global generators, as masked language models do."""
    inputs, labels = pad(items)
    return inputs + torch.rand(()) + random.random() + float(np.random.rand()), labels  # noqa: S311


@pytest.mark.parametrize("workers", [0, 2])
def test_random_numbers_of_a_collate_fn_depend_on_the_step(workers):
    straight = [batch.inputs for batch in ready(collate_fn=masked).train_dataloader()]
    torch.manual_seed(3)
    before = torch.get_rng_state()
    datamodule = ready(collate_fn=masked, num_workers=workers)
    loader = datamodule.train_dataloader()
    loader.position = lambda _: Position(2, 2)
    rest = [batch.inputs for batch in loader]
    assert all(torch.equal(a, b) for a, b in zip(rest, straight[2:], strict=True))
    assert len({batch[0, 0].item() % 1 for batch in straight}) == len(straight)
    assert torch.equal(torch.get_rng_state(), before)
    datamodule.teardown("fit")


# ---------------------------------------------------------------- with a stream


class Stream(IterableDataset):
    def __init__(self, make):
        self.make = make

    def __iter__(self):
        return (self.make(row) for row in range(100, 130))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("positives", "negatives", "collate_fn"),
    [
        (lambda row: (words(row), 1), words, pad),
        (words, lambda row: (words(row), 0), pad_alone),
    ],
    ids=["labelled, alone", "alone, labelled"],
)
def test_negatives_of_a_stream_are_collated_with_the_positives(positives, negatives, collate_fn, workers):
    datamodule = ready(Items(positives, 7), negatives=Stream(negatives), collate_fn=collate_fn, num_workers=workers)
    for step, batch in enumerate(datamodule.train_dataloader()):
        rows = first_of(batch.inputs)
        assert rows[:3] == batch.index.tolist()
        assert rows[3:] == [100 + (9 * step + k) % 30 for k in range(9)]
        assert torch.equal(batch.inputs, pad_sequence([words(row) for row in rows], batch_first=True))
    scored = [row for batch in datamodule.scoring_dataloaders()[1] for row in first_of(batch.inputs)]
    assert scored == list(range(100, 130))
    datamodule.teardown("fit")


# ---------------------------------------------------------------- how workers run


@pytest.mark.slow
def test_workers_may_be_spawned():
    datamodule = ready(collate_fn=pad, num_workers=1, multiprocessing_context="spawn", steps_per_epoch=2)
    alone = ready(collate_fn=pad, steps_per_epoch=2)
    for batch, expected in zip(datamodule.train_dataloader(), alone.train_dataloader(), strict=True):
        assert torch.equal(batch.inputs, expected.inputs)
    datamodule.teardown("fit")
