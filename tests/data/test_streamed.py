"""Training batches with streamed negatives, from the data module and without a Trainer."""

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lightning_tpauc.data.datamodule import PosNegDataModule
from lightning_tpauc.data.examples import Datasets
from lightning_tpauc.data.streaming import NegativeStream
from lightning_tpauc.errors import ArgumentError, DataError, TPAUCWarning
from tests.helpers.flows import (
    POSITIVES,
    WIDTH,
    Epochs,
    Iterators,
    OwnWorkers,
    Plain,
    Random,
    Shards,
    Sized,
    Stateful,
    StatefulIterator,
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
    datamodule = ready(make(), num_workers=workers)
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


def test_a_stream_that_divides_itself_is_told_its_worker():
    batches = batches_of(ready(NegativeStream(OwnWorkers(), "own"), num_workers=2, steps_per_epoch=3), epochs=2)
    expected = [[], []]
    for step, batch in enumerate(batches):
        numbers = [number for part in negatives_of(batch) for number in part]
        assert numbers == [step % 2 + 2 * (len(expected[step % 2]) + k) for k in range(5)]
        expected[step % 2] += numbers


def test_a_stream_that_ends_starts_again():
    (batch,) = batches_of(ready(Plain(4), steps_per_epoch=1))
    assert negatives_of(batch) == ([0, 1, 2], [3, 0])


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


def stateful_loader(*args, **kwargs):
    return pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader(*args, **kwargs)


SINGLE = Items(lambda k: ROWS[k], 23)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("outer", [0, 2])
@pytest.mark.parametrize(
    ("make", "length"),
    [
        (lambda **k: DataLoader(Plain(23), batch_size=None, **{**k, "num_workers": 0}), None),
        (lambda **k: DataLoader(SINGLE, batch_size=None, **k), 23),
        (lambda **k: stateful_loader(SINGLE, batch_size=None, **k), 23),
    ],
    ids=["single", "single rows", "stateful"],
)
def test_a_loader_of_single_examples(make, length, workers, outer):
    stream = make(num_workers=workers)
    inner = stream.num_workers
    datamodule = ready(stream, train=TensorDataset(POSITIVES), num_workers=outer)
    assert datamodule._stream().length == length
    if inner and outer:
        with pytest.raises(ArgumentError, match=r"`num_workers=2`, but .*\(`num_workers=2`\).* Set one of both to 0"):
            datamodule.train_dataloader()
        return
    batches = batches_of(datamodule)
    negatives = [k for batch in batches for part in negatives_of(batch) for k in part]
    assert negatives == [k % 23 for k in range(len(negatives))]
    scored = [k for batch in datamodule.scoring_dataloaders()[1] for k in numbers_of(batch.inputs)]
    assert scored == list(range(length or 23))


@pytest.mark.parametrize("train", [TensorDataset(POSITIVES), POSITIVES, [(x,) for x in POSITIVES]])
@pytest.mark.parametrize(
    "make", [lambda: Mapped(lambda x: (x,)), lambda: Mapped(lambda x: [x]), lambda: Mapped(lambda x: x)]
)
def test_a_single_entry_is_the_input(train, make):
    (batch,) = batches_of(ready(make(), train=train, steps_per_epoch=1))
    assert negatives_of(batch) == ([0, 1, 2], [3, 4])


def test_iterators_are_not_judged_by_their_length():
    class Empty(Iterators):
        """Its iterators say that nothing is left, as those of progress bars may."""

        def __iter__(self):
            class Iterator(StatefulIterator):
                def __len__(self):
                    return 0

            return Iterator(self.n)

    (batch,) = batches_of(ready(Empty(9), steps_per_epoch=1))
    assert negatives_of(batch) == ([0, 1, 2], [3, 4])


class Mapped(Plain):
    def __init__(self, wrap):
        super().__init__(30)
        self.wrap = wrap

    def __iter__(self):
        return map(self.wrap, super().__iter__())


def test_the_length_of_an_epoch_may_be_given_for_indexed_negatives_too():
    y = torch.arange(60) % 5 == 0
    datamodule = PosNegDataModule((torch.randn(60, 3), y), num_pos=3, num_neg=5, steps_per_epoch=4)
    datamodule.setup("fit")
    plain = PosNegDataModule(datamodule.train_dataset, num_pos=3, num_neg=5)
    plain.setup("fit")
    loader = datamodule.train_dataloader()
    batches = [batch.inputs for _ in range(3) for batch in loader]
    assert datamodule.steps_per_epoch == 4
    expected = plain.train_dataloader()
    straight = [batch.inputs for _ in range(2) for batch in expected][:12]
    assert all(torch.equal(a, b) for a, b in zip(batches, straight, strict=True))


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


def test_a_pass_beside_training_does_not_move_it():
    for make in (Plain, Stateful, Iterators):
        for workers in (0, 2):
            datamodule = ready(make(), num_workers=workers)
            loader = datamodule.train_dataloader()
            seen = []
            for step, batch in enumerate(loader):
                seen.append(negatives_of(batch)[0][0])
                if step == 1:
                    aside = [negatives_of(other)[0][0] for other in loader.whole_epoch()]
                    assert aside == [0, 5, 10, 15]
            datamodule.teardown("fit")
            assert seen == [0, 5, 10, 15]


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


def test_graphs():
    data = pytest.importorskip("torch_geometric.data")

    def graph(k):
        return data.Data(x=torch.full((1 + k % 3, 2), float(k)), edge_index=torch.zeros(2, 0, dtype=torch.int64))

    class Graphs(Plain):
        def __iter__(self):
            return (graph(k) for k in self.numbers())

    batch = batches_of(ready(Graphs(start=100), Items(graph, 7)))[1]
    assert batch.inputs.num_graphs == 7
    values = [graph.x[0, 0].item() for graph in batch.inputs.to_data_list()]
    assert values[2:] == [105, 106, 107, 108, 109]
    assert values[:2] == batch.index.tolist()


@pytest.mark.parametrize(
    ("stream", "train", "what"),
    [
        (Plain(), torch.ones(7, 2), r"a float32 tensor of shape \(2,\) and a float32 tensor of shape \(3,\)"),
        (
            Plain(),
            Items(lambda k: (torch.ones(2), 1), 7),
            r"tensor of shape \(2,\) and a float32 tensor of shape \(3,\)",
        ),
        (Plain(), Items(lambda k: {"x": torch.ones(3)}, 7), r"a mapping with \['x'\] and a float32 tensor"),
    ],
)
def test_inputs_of_two_kinds_are_refused(stream, train, what):
    with pytest.raises(DataError, match=f"of positives and negatives to be of one kind, but got .*{what}"):
        batches_of(ready(stream, train))


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
            loader.load_state_dict({"step": 2, "done_in_epoch": 2})
            with pytest.warns(TPAUCWarning, match="does not hold its place"):
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


@pytest.mark.parametrize("make", [Plain, Stateful])
def test_what_makes_batches_travels_to_workers_that_are_spawned(make):
    """Also after scoring, which leaves an iterator behind and may have moved the data set."""
    datamodule = ready(make())
    assert next(iter(datamodule.scoring_dataloaders()[1])).inputs.ndim == 2
    loader = datamodule.train_dataloader()
    loader._source.batches = pickle.loads(pickle.dumps(loader._source.batches))  # noqa: S301
    assert [negatives_of(batch)[0][0] for batch in loader] == [0, 5, 10, 15]


def test_ranks_score_equally_many():
    def scored(rank, size, stream):
        with rank_of(rank, size):
            loader = ready(stream, batch_size=4).scoring_dataloaders()[1]
            batches = list(loader)
            assert len(batches) == len(loader) == 2
            assert loader.num_examples == 18
            ids = torch.cat([batch.example_id for batch in batches]).tolist()
            return ids, [k for batch in batches for k in numbers_of(batch.inputs)]

    parts = [scored(rank, 3, NegativeStream(Plain(50), num_scored=20)) for rank in range(3)]
    assert sorted(k for ids, _ in parts for k in ids) == list(range(18))
    assert all(ids == numbers for ids, numbers in parts)
    parts = [scored(rank, 3, NegativeStream(Shards(), "shard", num_scored=20)) for rank in range(3)]
    assert sorted(k for ids, _ in parts for k in ids) == list(range(18))
    assert sorted(k for _, numbers in parts for k in numbers) == list(range(18))


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


@pytest.mark.parametrize("make", [Stateful, Iterators, Epochs])
def test_training_begins_with_the_first_example_after_a_pass_was_scored(make):
    datamodule = ready(make(10), batch_size=4)
    scored = [k for batch in datamodule.scoring_dataloaders()[1] for k in numbers_of(batch.inputs)]
    assert scored == list(range(10))
    assert negatives_of(next(iter(datamodule.train_dataloader()))) == ([0, 1, 2], [3, 4])


@pytest.mark.parametrize(("num", "expected"), [(10, 9), (12, 12), (13, 12), (2, 3)])
def test_ranks_score_a_short_stream_once(num, expected):
    """As many on each; a stream of fewer examples than ranks begins again."""
    parts = []
    for rank in range(3):
        with rank_of(rank, 3):
            loader = ready(Plain(num), batch_size=2).scoring_dataloaders()[1]
            parts.append(list(loader))
            assert loader.num_examples == expected
    scored = {
        example: k
        for part in parts
        for batch in part
        for example, k in zip(batch.example_id.tolist(), numbers_of(batch.inputs), strict=True)
    }
    assert scored == {example: example % num for example in range(expected)}
    assert len({tuple(len(batch.target) for batch in part) for part in parts}) == 1


def test_a_generator_that_was_scored_is_at_its_end():
    datamodule = ready(row(k) for k in range(10))
    list(datamodule.scoring_dataloaders()[1])
    with pytest.raises(DataError, match="a generator can be read only once"):
        next(iter(datamodule.train_dataloader()))


def test_how_many_are_scored():
    assert ready(NegativeStream(Plain(), num_scored=12)).scoring_dataloaders()[1].num_examples == 12
    assert ready(Plain()).scoring_dataloaders()[1].num_examples == 2**16
    assert ready(Sized(30)).scoring_dataloaders()[1].num_examples == 30
    assert ready(NegativeStream(Sized(30), num_scored=8)).scoring_dataloaders()[1].num_examples == 8


# ------------------------------------------------------------------ what can't work


@pytest.mark.parametrize("sampling", ["uniform", "full"])
def test_other_samplings_are_refused(sampling):
    remedy = {"uniform": "set `sampling='pos_neg'`", "full": "another algorithm, such as STACO"}[sampling]
    with pytest.raises(ArgumentError, match=f"`sampling='{sampling}'` .*{remedy}.* `negatives` is a stream"):
        ready(Plain(), sampling=sampling)


@pytest.mark.parametrize(
    ("name", "options"), [("val_fraction=0.2", {"val_fraction": 0.2}), ("num_folds=2", {"num_folds": 2, "fold": 0})]
)
def test_splits_are_refused(name, options):
    with pytest.raises(ArgumentError, match=f"`{name}` can't split a stream of `negatives`. Pass a `val_dataset`"):
        ready(Plain(), **options)


def test_negatives_beside_the_stream_are_refused():
    labels = torch.arange(7) % 3 == 0
    with pytest.raises(
        DataError, match=r"positives only in `train_dataset` .* but 4 of its 7 labels are 0\. Put them into"
    ):
        ready(Plain(), (POSITIVES, labels))
    with pytest.raises(DataError, match="but 4 of its 7 labels are 0"):
        ready(Plain(), Items(lambda k: (POSITIVES[k], labels[k]), 7))
    with pytest.raises(DataError, match="but 4 of its 7 labels are 0"):
        ready(Plain(), targets=labels)


def test_what_is_no_stream_is_refused():
    with pytest.raises(
        DataError, match=r"`negatives` to be a stream, but got a Tensor, .* one `train_dataset` with labels"
    ):
        ready(torch.randn(5, 3))
    with pytest.raises(DataError, match="but got a TensorDataset, which can be indexed"):
        ready(TensorDataset(torch.randn(5, 3)))
    with pytest.raises(ArgumentError, match="`negatives` to be an iterable data set, but got a int"):
        ready(3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "even"}, "`split` to be one of 'deal', 'shard', 'own', but got 'even'"),
        ({"num_scored": 0}, "`num_scored` of NegativeStream to be at least 1, but got 0"),
        ({"split": "shard"}, "but Plain has no such method. Use `split='deal'`"),
    ],
)
def test_options_of_a_stream(options, message):
    with pytest.raises(ArgumentError, match=message):
        NegativeStream(Plain(), **options)


def test_an_unknown_number_is_not_invented():
    with pytest.raises(DataError, match=r"number of negatives is unknown: Plain has no `__len__`\. Define it"):
        _ = ready(Plain()).num_negatives


def test_an_epoch_without_steps_is_refused():
    with pytest.raises(ArgumentError, match="`steps_per_epoch` to be a whole number of at least 1, but got 0"):
        PosNegDataModule(POSITIVES, negatives=Plain(), steps_per_epoch=0)


def test_subclasses_return_a_stream():
    class Files(PosNegDataModule):
        def build_datasets(self, stage):
            return Datasets(train=POSITIVES, negatives=Random(seed=3))

    datamodule = Files(num_pos=2, num_neg=3)
    datamodule.setup("fit")
    batch = next(iter(datamodule.train_dataloader()))
    stream = iter(Random(seed=3))
    assert torch.equal(batch.inputs[2:], torch.stack([next(stream) for _ in range(3)]))


class Always(IterableDataset):
    def __init__(self, item):
        self.item = item

    def __iter__(self):
        while True:
            yield self.item


def padded(items):
    return torch.stack([x for x, _ in items]), torch.tensor([label for _, label in items])


NEGATIVE = torch.zeros(WIDTH)


@pytest.mark.parametrize(
    ("negative", "shown"),
    [
        ({"x": NEGATIVE}, r"a mapping with \['x'\]"),
        ({"x": {"y": NEGATIVE}}, "a mapping with"),
        ((NEGATIVE, NEGATIVE, 0), "a tuple of 2"),
        ("words", "a (str|tuple of 5)"),
        (None, "a NoneType"),
    ],
    ids=["mapping", "nested", "tuple", "words", "none"],
)
@pytest.mark.parametrize("collate_fn", [None, padded])
@pytest.mark.parametrize("train", [Items(lambda k: (NEGATIVE, 1), 7), POSITIVES], ids=["items", "tensor"])
def test_negatives_of_another_kind_are_named(train, collate_fn, negative, shown):
    if collate_fn is not None and train is POSITIVES:
        pytest.skip("the function wants labels")
    with pytest.raises(DataError, match=rf"of one kind, but got a float32 tensor .* and {shown}.*Let the stream|batch"):
        batches_of(ready(Always(negative), train, collate_fn=collate_fn))


def test_mappings_beside_arrays_are_named():
    train = Items(lambda k: ({"x": NEGATIVE}, 1), 7)
    with pytest.raises(DataError, match=r"a mapping with \['x'\] and a ndarray"):
        batches_of(ready(Always(np.zeros(WIDTH, dtype=np.float32)), train))


def test_errors_of_a_collate_fn_stay_as_they_are():
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        batches_of(ready(Always(torch.zeros(WIDTH + 1)), Items(lambda k: (NEGATIVE, 1), 7), collate_fn=padded))


def test_a_loader_of_batches_is_refused():
    with pytest.raises(ArgumentError, match=r"a DataLoader that yields batches, .* Make it with `batch_size=None`"):
        NegativeStream(DataLoader(TensorDataset(ROWS), batch_size=4))
