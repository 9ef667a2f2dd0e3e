"""Streams are read in order, from any place, in passes."""

import pickle

import numpy as np
import pytest
import torch

from lightning_tpauc.data.streaming import NegativeStream, Place, StreamReader, inputs_of_negatives
from lightning_tpauc.errors import DataError
from tests.helpers.flows import (
    Epochs,
    Iterators,
    Plain,
    Random,
    Shards,
    Sized,
    Stateful,
    numbers_of,
)


def reader_of(dataset, **kwargs):
    return StreamReader(NegativeStream(dataset, **kwargs))


def take(reader, count):
    return numbers_of(torch.stack(reader.take(count)))


@pytest.mark.parametrize("make", [Plain, Sized, Stateful, Iterators, Epochs])
def test_passes_follow_each_other(make):
    reader = reader_of(make(5))
    reader.seek(Place(), 0)
    expected = [k % 5 for k in range(20)]
    assert take(reader, 3) + take(reader, 4) + take(reader, 13) == expected
    assert (reader.place.position, reader.place.passes, reader.place.index) == (20, 3, 5)


def test_each_pass_is_announced():
    reader = reader_of(Epochs(4))
    reader.seek(Place(), 0)
    assert torch.stack(reader.take(10))[:, 2].tolist() == [0] * 4 + [1] * 4 + [2] * 2


@pytest.mark.parametrize("target", [0, 1, 7, 5000])
def test_seek_reads_past_what_is_between(target):
    reader = reader_of(Plain())
    reader.seek(Place(), target)
    assert take(reader, 2) == [target, target + 1]
    reader.seek(None, target + 6)
    assert take(reader, 1) == [target + 6]


@pytest.mark.parametrize(
    "make", [lambda: Stateful(7), lambda: Iterators(7), Random], ids=["stateful", "iterators", "random"]
)
def test_a_reader_goes_on_from_every_place_of_another(make):
    """Also in another process, which has a data set of its own."""
    reader = reader_of(make())
    reader.seek(Place(), 0)
    places, parts = [], []
    for count in (1, 2, 4, 3, 5, 2, 6):
        parts.append(torch.cat([part.reshape(-1, 3) for part in reader.take(count)]))
        places.append(reader.place)
    for k, place in enumerate(places[:-1]):
        other = reader_of(make())
        other.seek(pickle.loads(pickle.dumps(place)), place.position)  # noqa: S301
        for part in parts[k + 1 :]:
            again = torch.cat([p.reshape(-1, 3) for p in other.take(len(part))])
            assert torch.equal(again, part), k
        assert other.place.position == reader.place.position


@pytest.mark.parametrize("make", [Plain, Stateful, Iterators, Random])
def test_two_readers_of_one_data_set_do_not_disturb_each_other(make):
    dataset = make()
    first, second = StreamReader(stream := NegativeStream(dataset)), StreamReader(stream)
    alone = reader_of(make())
    for reader in (first, second, alone):
        reader.seek(Place(), 0)
        assert torch.equal(reader.take(1)[0], next(iter(make())))
    alone = [torch.stack(alone.take(3)) for _ in range(3)]
    for expected in alone:
        for reader in (first, second):
            reader.seek(None, reader.place.position)
            assert torch.equal(torch.stack(reader.take(3)), expected)


def test_back_to_the_beginning():
    for dataset in (Plain(6), Stateful(6), Iterators(6)):
        reader = reader_of(dataset)
        reader.seek(Place(), 4)
        assert take(reader, 3) == [4, 5, 0]
        reader.seek(Place(), 0)
        assert take(reader, 3) == [0, 1, 2]


def test_parts_of_a_stream_that_can_be_cut():
    parts = [StreamReader(NegativeStream(Shards(10), "shard"), k, 3) for k in range(3)]
    for reader in parts:
        reader.seek(Place(), 0)
    assert [take(reader, 5) for reader in parts] == [[0, 3, 6, 9, 0], [1, 4, 7, 1, 4], [2, 5, 8, 2, 5]]


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


def test_an_empty_stream_is_refused():
    with pytest.raises(DataError, match=r"yields no example\. Check its source"):
        reader_of(Plain(0)).seek(Place(), 1)
    part = StreamReader(NegativeStream(Shards(2), "shard"), 2, 3)
    with pytest.raises(DataError, match="yields no example in part 2 of 3"):
        part.seek(Place(), 1)


def test_a_generator_that_ends_is_refused_when_it_has_ended():
    reader = reader_of(iter([1.0, 2.0, 3.0]))
    reader.seek(Place(), 0)
    assert reader.take(2) == [1.0, 2.0]
    with pytest.raises(DataError, match=r"yields nothing when it is iterated again\. Let `__iter__` begin anew"):
        reader.take(2)
