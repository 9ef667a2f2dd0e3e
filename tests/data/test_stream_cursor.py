"""What the training process remembers about a stream."""

import pickle
import warnings

import numpy as np
import pytest
import torch

from lightning_tpauc.data.streaming import NegativeStream, Place, StreamCursor
from lightning_tpauc.errors import DataError, TPAUCWarning
from tests.helpers.flows import Plain, Shards, Stateful, negatives_of, ready
from tests.helpers.worlds import rank_of


def place(position, state=None):
    return Place(position, 0, position, None if state is None else pickle.dumps(({"at": state}, None)))


def test_the_place_behind_the_last_trained_batch_is_saved():
    cursor = StreamCursor(NegativeStream(Stateful()))
    assert cursor.state(0) is None
    cursor.begin(0, 1, fresh=True)
    for step in range(1, 4):
        cursor.record(step, 0, place(10 * step, 10 * step))
    assert cursor.state(2) == {"places": [[20, 0, 20, ({"at": 20}, None)]]}
    assert cursor.state(3)["places"][0][0] == 30
    assert cursor.state(7) is None


def resumed(dataset, saved, step=4, **kwargs):
    """A data module that goes on behind a checkpoint."""
    datamodule = ready(dataset, **kwargs)
    loader = datamodule.train_dataloader()
    loader.load_state_dict({"step": step, "done_in_epoch": 0})
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


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_with_a_state_goes_on_without_a_word(workers):
    saved = saved_after(Stateful(17), num_workers=workers)
    datamodule, loader = resumed(Stateful(17), [saved], num_workers=workers)
    assert [negatives_of(batch)[0] for batch in loader][:2] == [[3, 4, 5], [8, 9, 10]]
    datamodule.teardown("fit")


@pytest.mark.parametrize("dataset", [lambda: Stateful(17), lambda: Plain(17)])
def test_a_checkpoint_that_is_saved_before_a_resumed_run_reads_on_holds_the_place(dataset):
    """As in the validation that was interrupted, which a resumed run does first."""
    saved = saved_after(dataset())
    datamodule, _ = resumed(dataset(), [saved])
    assert datamodule.negatives_state(4) == saved
    datamodule.teardown("fit")


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3)])
def test_a_dealt_stream_goes_on_with_any_number_of_processes(before, after):
    states = []
    for rank in range(before):
        with rank_of(rank, before):
            states.append(saved_after(Stateful(), num_workers=2, steps_per_epoch=9))
    assert states == states[:1] * before
    seen = []
    for rank in range(after):
        with rank_of(rank, after):
            datamodule, loader = resumed(Stateful(), states, num_workers=2, steps_per_epoch=3)
            seen += [number for batch in loader for part in negatives_of(batch) for number in part]
            datamodule.teardown("fit")
    assert sorted(seen) == list(range(20 * before, 20 * before + 15 * after))


def test_parts_go_on_with_the_same_number_of_processes_only():
    class StatefulShards(Shards, Stateful):
        """Each part counts for itself."""

        def shard(self, num_shards, index):
            part = StatefulShards(self.n)
            part.step, part.first = num_shards, index
            return part

        def __iter__(self):
            while True:
                self.at += 1
                yield torch.tensor([self.first + (self.at - 1) * self.step, 0.0, 0.0])

    def make():
        dataset = StatefulShards()
        dataset.first = 0
        return NegativeStream(dataset, "shard")

    states = []
    for rank in range(2):
        with rank_of(rank, 2):
            states.append(saved_after(make(), steps_per_epoch=9))
    for rank in range(2):
        with rank_of(rank, 2):
            _, loader = resumed(make(), states, steps_per_epoch=9)
            assert negatives_of(next(iter(loader)))[0] == [2 * k + rank for k in (20, 21, 22)]
    for size in (1, 3):
        with rank_of(0, size):
            _, loader = resumed(make(), states, steps_per_epoch=9)
            with pytest.warns(TPAUCWarning, match="for other numbers of processes or workers, .* Resume with the same"):
                assert negatives_of(next(iter(loader)))[0] == [0, size, 2 * size]


def test_a_checkpoint_without_a_stream():
    datamodule = ready(Stateful())
    loader = datamodule.train_dataloader()
    loader.load_state_dict({"step": 5, "done_in_epoch": 1})
    with pytest.warns(
        TPAUCWarning, match="the checkpoint does not hold its place. Resume from one that was written with"
    ):
        assert negatives_of(next(iter(loader)))[0] == [0, 1, 2]


def test_a_new_run_with_the_same_data_module_starts_from_the_beginning():
    for dataset in (Plain(), Stateful()):
        datamodule = ready(dataset)
        for _ in range(2):
            loader = datamodule.train_dataloader()
            assert [negatives_of(batch)[0][0] for batch in loader] == [0, 5, 10, 15]


def test_a_state_that_no_checkpoint_can_hold_is_refused_at_once():
    class Numpy(Stateful):
        def state_dict(self):
            return {"at": np.arange(3)}

    with pytest.raises(
        DataError, match=r"`state_dict` of the stream of negatives \(Numpy\) .* Return numbers, strings"
    ):
        next(iter(ready(Numpy()).train_dataloader()))


def test_other_streams_start_over_and_say_so_once():
    _, loader = resumed(Plain(17), [saved_after(Plain(17))])
    with pytest.warns(TPAUCWarning, match="starts over while training goes on: Plain has no `state_dict`") as caught:
        assert negatives_of(next(iter(loader)))[0] == [0, 1, 2]
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader)
