"""Training batches with streamed negatives, from the data module and without a Trainer."""

import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lightning_tpauc import PosNegDataModule
from lightning_tpauc.data.loader import Position
from lightning_tpauc.data.sampler import World
from lightning_tpauc.data.streaming import NegativeStream, Place, StreamReader, inputs_of_negatives
from lightning_tpauc.errors import ArgumentError, DataError, TPAUCWarning
from tests.helpers.flows import (
    POSITIVES,
    WIDTH,
    Epochs,
    Iterators,
    OwnWorkers,
    Plain,
    Shards,
    Sized,
    Stateful,
    batches_of,
    negatives_of,
    numbers_of,
    ready,
    row,
)
from tests.helpers.items import Items, draw
from tests.helpers.worlds import rank_of

pytestmark = pytest.mark.filterwarnings("ignore:.*Our suggested max number of worker.*")


# ------------------------------------------------------------------ what a step holds


@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.parametrize(
    "make",
    [Plain, Stateful, Iterators, OwnWorkers],
    ids=["plain", "stateful", "iterators", "divides itself"],
)
def test_steps_read_on_in_the_stream_whatever_the_number_of_workers(make, workers):
    options = {"persistent_workers": False} if make is Stateful else {}  # it goes on in new workers
    datamodule = ready(make(), num_workers=workers, **options)
    batches = batches_of(datamodule, epochs=3)
    assert len(batches) == 12
    for step, batch in enumerate(batches):
        first = 5 * step
        assert negatives_of(batch) == ([first, first + 1, first + 2], [first + 3, first + 4])
        assert torch.equal(batch.inputs[:2], POSITIVES[batch.index])
        assert batch.shares is None
    assert {k for batch in batches[:4] for k in batch.index.tolist()} == set(range(7))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("make", [lambda: Plain(41), Stateful])
def test_ranks_share_what_one_process_reads(size, workers, make):

    alone = batches_of(ready(make(), num_pos=2 * size, num_neg=3 * size, num_dual_neg=2 * size, steps_per_epoch=9))
    parts = []
    for rank in range(size):
        with rank_of(rank, size):
            parts.append(batches_of(ready(make(), num_workers=workers, steps_per_epoch=9)))
    assert {len(part) for part in parts} == {9}
    for step, batch in enumerate(alone):
        for k in range(2):
            together = [number for part in parts for number in negatives_of(part[step])[k]]
            assert sorted(together) == sorted(negatives_of(batch)[k])
        assert torch.equal(torch.cat([part[step].index for part in parts]), batch.index)
        assert {len(part[step].shares) for part in parts} == {size}


@pytest.mark.parametrize("workers", [0, 2])
def test_shards_hold_different_examples(workers):
    seen = []
    for rank in range(2):
        with rank_of(rank, 2):
            batches = batches_of(ready(NegativeStream(Shards(), "shard"), num_workers=workers, steps_per_epoch=5), 2)
            seen += [number for batch in batches for part in negatives_of(batch) for number in part]
    assert len(seen) == len(set(seen)) == 2 * 10 * 5
    if not workers:
        assert sorted(seen) == list(range(100))


def test_each_pass_is_announced():
    batches = batches_of(ready(Epochs(4), steps_per_epoch=2))
    read = torch.cat([batch.inputs[2:] for batch in batches])
    assert read[:, 2].tolist() == [0] * 4 + [1] * 4 + [2] * 2


# ------------------------------------------------------------------ epochs


def test_an_epoch_is_a_pass_over_the_positives_or_over_a_stream_with_a_length():
    assert ready(Plain(1000)).steps_per_epoch == 4
    assert ready(Sized(21)).steps_per_epoch == 5
    assert ready(Sized(15)).steps_per_epoch == 4
    assert ready(Sized(15), steps_per_epoch=11).steps_per_epoch == len(
        ready(Plain(), steps_per_epoch=11).train_dataloader()
    )
    assert (ready(Sized(21)).num_negatives, ready(Sized(21)).num_positives) == (21, 7)
    with rank_of(0, 2):
        assert ready(Plain()).steps_per_epoch == 2
        assert ready(Sized(41)).steps_per_epoch == 5


# ------------------------------------------------------------------ a DataLoader as stream

ROWS = torch.stack([row(k) for k in range(23)])


SINGLE = Items(lambda k: ROWS[k], 23)


@pytest.mark.parametrize(("workers", "outer"), [(0, 0), (2, 0), (0, 2)])  # workers can't start others
@pytest.mark.parametrize(
    ("make", "length"),
    [
        (lambda **k: DataLoader(Plain(23), batch_size=None, **{**k, "num_workers": 0}), None),
        (lambda **k: DataLoader(SINGLE, batch_size=None, **k), 23),
    ],
    ids=["single", "single rows"],
)
def test_a_loader_of_single_examples(make, length, workers, outer):
    stream = make(num_workers=workers)
    datamodule = ready(stream, train=TensorDataset(POSITIVES), num_workers=outer)
    assert datamodule._stream().length == length
    batches = batches_of(datamodule)
    negatives = [k for batch in batches for part in negatives_of(batch) for k in part]
    assert negatives == [k % 23 for k in range(len(negatives))]
    scored = [k for batch in datamodule.scoring_dataloaders()[1] for k in numbers_of(batch.inputs)]
    assert scored == list(range(length or 23))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("make", "moves"), [(Plain, False), (Stateful, True), (Iterators, True)])
def test_an_epoch_cut_short(make, moves, workers):
    """A stream that knows where it stands goes back to behind the last batch; others go on behind what was read."""
    datamodule = ready(make(), num_workers=workers, steps_per_epoch=20)
    loader = datamodule.train_dataloader()
    first = [negatives_of(batch)[0][0] for batch, _ in zip(loader, range(3), strict=False)]
    second = [negatives_of(batch)[0][0] for batch, _ in zip(loader, range(3), strict=False)]
    datamodule.teardown("fit")
    assert first == [0, 5, 10]
    if moves or not workers:
        # ``zip`` asks for a fourth batch before it stops, which counts as handed out
        assert second == [20, 25, 30]
    else:
        assert second[0] > 20
        assert second == [second[0] + 5 * k for k in range(3)]


# ------------------------------------------------------------------ kinds of items


def test_items_tuples_and_mappings():
    def pair(k):
        return POSITIVES[k], 1

    class Pairs(Plain):
        def __iter__(self):
            return ((x, 0) for x in super().__iter__())

    for train in (Items(pair, 7), TensorDataset(POSITIVES), (POSITIVES, torch.ones(7)), POSITIVES.numpy()):
        for stream in (Plain(), Pairs()):
            batch = batches_of(ready(stream, train))[1]
            assert torch.equal(batch.inputs[:2], POSITIVES[batch.index])
            assert negatives_of(batch) == ([5, 6, 7], [8, 9])

    class Mappings(Plain):
        def __iter__(self):
            return ({"x": x, "twice": 2 * x} for x in super().__iter__())

    train = Items(lambda k: {"x": POSITIVES[k], "twice": 2 * POSITIVES[k]}, 7)
    batch = batches_of(ready(Mappings(), train))[1]
    assert torch.equal(batch.inputs["twice"], 2 * batch.inputs["x"])
    assert numbers_of(batch.inputs["x"])[2:] == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("workers", [0, 2])
def test_global_generators(workers):
    """They are left alone, and what a stream draws from them depends on the step alone."""

    class Noise(Plain):
        def __iter__(self):
            while True:
                yield torch.tensor(draw())

    runs = []
    for resumed in (False, True):
        torch.manual_seed(5)
        np.random.seed(5)
        expected = draw()[1:]
        torch.manual_seed(5)
        np.random.seed(5)
        datamodule = ready(Noise(), num_workers=workers)
        loader = datamodule.train_dataloader()
        if resumed:
            loader.position = lambda _: Position(2, 2)
            with pytest.warns(TPAUCWarning, match="holds no place for this stream"):
                runs.append(list(loader))
        else:
            runs.append(list(loader))
        assert next(iter(datamodule.scoring_dataloaders()[1])).inputs.ndim == 2
        assert draw()[1:] == expected
        datamodule.teardown("fit")
    straight, resumed = runs
    assert len({batch.inputs[2, 1].item() for batch in straight}) == 4
    for batch, again in zip(straight[2:], resumed, strict=True):
        assert torch.equal(batch.inputs, again.inputs)


# ------------------------------------------------------------------ scoring


@pytest.mark.parametrize("make", [lambda: Plain(50), lambda: Stateful(50)])
def test_the_first_negatives_are_scored_and_training_is_not_moved(make):
    datamodule = ready(NegativeStream(make(), num_scored=20), batch_size=6)
    loader = iter(datamodule.train_dataloader())
    assert negatives_of(next(loader))[0] == [0, 1, 2]
    positives, negatives = datamodule.scoring_dataloaders()
    batches = list(negatives)
    assert len(batches) == len(negatives) == 4
    assert negatives.num_examples == 20
    assert positives.num_examples == 7
    assert [k for batch in batches for k in numbers_of(batch.inputs)] == list(range(20))
    assert torch.cat([batch.example_id for batch in batches]).tolist() == list(range(20))
    assert {int(t) for batch in batches for t in batch.target} == {0}
    assert negatives_of(next(loader))[0] == [5, 6, 7]


class Counted(Plain):
    """Says how often an example was read and how many passes were begun."""

    reads = passes = 0

    def __iter__(self):
        self.passes += 1
        for k in self.numbers():
            self.reads += 1
            yield row(k)


@pytest.mark.parametrize("num", [1, 3, 4, 10])
def test_a_stream_without_a_length_is_scored_once(num):
    stream = Counted(num)
    loader = ready(stream, batch_size=4).scoring_dataloaders()[1]
    batches = list(loader)
    assert [k for batch in batches for k in numbers_of(batch.inputs)] == list(range(num))
    assert (stream.reads, stream.passes, loader.num_examples) == (num, 1, num)
    assert torch.cat([batch.example_id for batch in batches]).tolist() == list(range(num))
    assert len(list(loader)) == len(batches)


# ------------------------------------------------------------------ what can't work


@pytest.mark.parametrize("sampling", ["uniform", "full"])
def test_other_samplings_are_refused(sampling):
    message = f"`sampling='{sampling}'` .* `negatives` is a stream.* train with `sampling='pos_neg'` and an algorithm"
    with pytest.raises(ArgumentError, match=message):
        ready(Plain(), sampling=sampling)


@pytest.mark.parametrize(
    ("name", "options"), [("val_fraction", {"val_fraction": 0.2}), ("num_folds", {"num_folds": 2, "fold": 0})]
)
def test_splits_are_refused(name, options):
    with pytest.raises(ArgumentError, match=f"`{name}` can't split a stream of `negatives`. Pass a `val_dataset`"):
        ready(Plain(), **options)


def test_negatives_beside_the_stream_are_refused():
    labels = torch.arange(7) % 3 == 0
    with pytest.raises(
        DataError, match=r"`train_dataset` to hold positives .* but 4 are 0\. .*put the negatives into the stream"
    ):
        ready(Plain(), (POSITIVES, labels))


class Always(IterableDataset):
    def __init__(self, item):
        self.item = item

    def __iter__(self):
        while True:
            yield self.item


NEGATIVE = torch.zeros(WIDTH)


@pytest.mark.parametrize(
    "negative",
    [{"x": NEGATIVE}, "words", torch.zeros(WIDTH + 1)],
    ids=["mapping", "words", "shape"],
)
@pytest.mark.parametrize("train", [Items(lambda k: (NEGATIVE, 1), 7), POSITIVES], ids=["items", "tensor"])
def test_negatives_of_another_kind_are_named(train, negative):
    with pytest.raises(DataError, match=r"can't be put into one batch .*A stream of negatives yields what"):
        batches_of(ready(Always(negative), train))


def test_a_loader_of_batches_is_refused():
    with pytest.raises(ArgumentError, match=r"a DataLoader that yields batches, .* Make it with `batch_size=None`"):
        NegativeStream(DataLoader(TensorDataset(ROWS), batch_size=4))


# ------------------------------------------------------------------ checkpoints


def resumed(dataset, saved, step=4, **kwargs):
    """A data module that goes on behind a checkpoint."""
    datamodule = ready(dataset, **kwargs)
    loader = datamodule.train_dataloader()
    loader.position = lambda _: Position(step)
    datamodule.load_negatives_state(step, saved)
    return datamodule, loader


def saved_after(dataset, step=4, **kwargs):
    datamodule = ready(dataset, **kwargs)
    loader = iter(datamodule.train_dataloader())
    for _ in range(step):
        next(loader)
    state = datamodule.negatives_state(step)
    datamodule.teardown("fit")
    return state


@pytest.mark.parametrize("dataset", [lambda: Stateful(17), lambda: Plain(17)])
def test_a_checkpoint_that_is_saved_before_a_resumed_run_reads_on_holds_the_place(dataset):
    """As in the validation that was interrupted, which a resumed run does first."""
    saved = saved_after(dataset())
    datamodule, _ = resumed(dataset(), [saved])
    assert datamodule.negatives_state(4) == saved
    datamodule.teardown("fit")


def test_parts_go_on_with_the_same_number_of_processes_only():
    class Parts(Stateful):
        """Part k begins at 1000 k, and counts for itself."""

        def shard(self, num_shards, index):
            part = Parts()
            part.at = 1000 * index
            return part

    states = []
    for rank in range(2):
        with rank_of(rank, 2):
            states.append(saved_after(NegativeStream(Parts(), "shard"), steps_per_epoch=9))
    message = "holds no place for this stream and these numbers of processes .* Resume with the same"
    for rank, size, first in ((0, 2, 20), (1, 2, 1020), (0, 1, 0), (0, 3, 0)):
        with rank_of(rank, size):
            _, loader = resumed(NegativeStream(Parts(), "shard"), states, steps_per_epoch=9)
            with nullcontext() if size == 2 else pytest.warns(TPAUCWarning, match=message):
                assert negatives_of(next(iter(loader)))[0] == [first, first + 1, first + 2]


def test_other_streams_start_over_and_say_so_once():
    _, loader = resumed(Plain(17), [saved_after(Plain(17))])
    with pytest.warns(TPAUCWarning, match="starts over while training goes on: Plain has no `state_dict`") as caught:
        assert negatives_of(next(iter(loader)))[0] == [0, 1, 2]
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader)


def test_labels_are_left_out_and_looked_at():
    x = torch.ones(2)
    for label in (0, 0.0, False, torch.tensor(0), np.int8(0), torch.zeros(1)):
        assert inputs_of_negatives([(x, label)]) == [x]
    assert inputs_of_negatives([(1, 2, 0)]) == [(1, 2)]
    assert inputs_of_negatives([{"x": 1, "label": 1}]) == [{"x": 1, "label": 1}]
    assert inputs_of_negatives([(x,)]) == [x]  # as from a TensorDataset of one tensor
    for label in (1, torch.tensor(1), torch.tensor([0, 1])):
        with pytest.raises(DataError, match=r"tuples that end with the label 0, but got tuple .* Leave positives out"):
            inputs_of_negatives([(x, 0), (x, label)])


@pytest.mark.parametrize("label", [0, None])
def test_the_label_of_a_mapping_is_no_input(label):
    class Mappings(IterableDataset):
        def __iter__(self):
            return iter([{"x": torch.ones(2), "label": label} if label is not None else {"x": torch.ones(2)}] * 40)

    data = PosNegDataModule([{"x": torch.zeros(2), "label": 1}] * 5, negatives=Mappings(), num_pos=2, num_neg=4)
    data.setup("fit")
    for loader in (data.train_dataloader(), *data.scoring_dataloaders()):
        for batch in loader:
            assert set(batch.inputs) == {"x"}


def test_an_empty_stream_is_refused():
    for reader in (StreamReader(NegativeStream(Plain(0))), StreamReader(NegativeStream(Shards(2), "shard"), 2, 3)):
        with pytest.raises(
            DataError, match=rf"Part {reader.index} of the stream .* yields no example\. Check its source"
        ):
            reader.seek(Place(), 1)


def test_a_generator_that_ends_is_refused_when_it_has_ended():
    reader = StreamReader(NegativeStream(iter([1.0, 2.0, 3.0])))
    reader.seek(Place(), 0)
    assert reader.share(2, World(0, 1), 0, 0) == [1.0, 2.0]
    with pytest.raises(DataError, match=r"yields no example\. Check its source, and let `__iter__` begin anew"):
        reader.share(2, World(0, 1), 0, 1)


@pytest.mark.parametrize("negatives", [torch.zeros(9, 2), TensorDataset(torch.zeros(9, 2)), [[0.0, 0.0]] * 9])
def test_what_can_be_indexed_is_no_stream(negatives):
    with pytest.raises(DataError, match=r"`negatives` to be a stream, but got a .*, which can be indexed"):
        NegativeStream(negatives)
