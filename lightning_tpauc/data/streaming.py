"""Negatives that are read one after another instead of being indexed, and batches that hold them.

Readers run ahead of training if batches are prefetched. So each batch carries the place behind it, and a checkpoint
holds the place behind the last batch that was trained on, even if worker processes read the stream.
"""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal, NamedTuple, cast

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, _utils

from lightning_tpauc.data.batch import EvalBatch, PosNegBatch
from lightning_tpauc.data.examples import Fetcher, collate_with_rows
from lightning_tpauc.data.loader import PosNegLoader, batch_of
from lightning_tpauc.data.sampler import BatchPlan, World, current_world
from lightning_tpauc.data.seeding import seeded_items
from lightning_tpauc.distributed import gather_objects
from lightning_tpauc.errors import ArgumentError, DataError, TPAUCWarning
from lightning_tpauc.functional.checks import check_choice

# Number of skipped examples that are read at once.
_CHUNK = 4096


class NegativeStream:
    """A stream of negatives, and how it is read. A plain iterable data set is read with the defaults.

    Each step reads ``num_neg`` examples and then ``num_dual_neg`` others, so the two batches are disjoint. Examples are
    taken in the stream's order: shuffle in the stream if neighbours resemble each other. When the stream ends, it is
    started again with ``iter(dataset)``, after ``dataset.set_epoch(pass)`` if it has that method.

    Args:
        dataset: yields inputs of negatives, of the same kind as those of the positives, or tuples that end with the
            label 0. If it or its iterator has ``state_dict()`` and ``load_state_dict()``, as torchdata's and Hugging
            Face's streams have, a resumed run continues exactly where the stream stood. Others start over, and a
            warning says so. (The state of Hugging Face's ``shuffle`` leaves out its buffer.) The state must be readable
            by ``torch.load(weights_only=True)``: numbers, strings, tensors, lists, tuples and dictionaries of these.
        split: how processes and workers share the stream. ``"deal"``: each process reads the whole stream and keeps its
            part of each step. So the negatives of a step do not depend on the number of workers and processes (their
            order may), but every process pays for reading all. ``"shard"``: each reads its own
            ``dataset.shard(num_shards=..., index=...)``. ``"own"``: the data set divides itself by the rank and
            :func:`torch.utils.data.get_worker_info`, as WebDataset and litdata do. Only with ``"own"``, the data set
            sees that it runs in a worker.
        num_scored: number of negatives that are scored for the exact start of the dual variables.

    Raises:
        ArgumentError: if an argument is out of range or the data set can't be iterated, or yields batches.
        DataError: if the data set can be indexed.

    Example:
        >>> class Counter(IterableDataset):
        ...     def __iter__(self):
        ...         return iter(range(10))
        >>> NegativeStream(Counter()).split
        'deal'
    """

    def __init__(
        self,
        dataset: IterableDataset | DataLoader,  # type: ignore[type-arg]  # the command line can't fill in a generic type
        split: Literal["deal", "shard", "own"] = "deal",
        *,
        num_scored: int = 2**16,
    ) -> None:
        _check_dataset(dataset)
        check_choice(split, "split", ("deal", "shard", "own"))
        if num_scored < 1:
            msg = f"Expected `num_scored` of NegativeStream to be at least 1, but got {num_scored}."
            raise ArgumentError(msg)
        if split == "shard" and not hasattr(dataset, "shard"):
            msg = (
                f"`split='shard'` calls `shard(num_shards=..., index=...)`, but {type(dataset).__name__} has no such "
                "method. Use `split='deal'`."
            )
            raise ArgumentError(msg)
        self.dataset, self.split, self.num_scored = cast(Any, dataset), split, num_scored
        #: The state before the first read. States are copied: a data set may change the object that it returned.
        self.initial = copy.deepcopy(self.dataset.state_dict()) if _is_stateful(dataset) else None
        if self.initial is not None:
            # torchdata's loaders make an iterator when they are asked for the state, and return it at the next `iter`,
            # which would ignore a state that is loaded before.
            iter(self.dataset)
        #: The reader that iterates now. A data set that holds its own position serves one reader at a time.
        self.owner: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # A reader's iterator can't be sent to a worker. The worker only needs to know that there was a reader.
        return self.__dict__ | {"owner": self.owner and "in another process"}

    def num_substreams(self, num_workers: int) -> int:
        """Number of substreams that one process reads: one, or one for each worker."""
        return 1 if self.split == "deal" else max(1, num_workers)

    @property
    def length(self) -> int | None:
        """Number of examples of one pass; ``None`` if the data set does not say."""
        try:
            return len(self.dataset)
        except TypeError:
            return None

    def known_length(self) -> int:
        """Number of examples of one pass.

        Raises:
            DataError: if the data set does not say.
        """
        if self.length is None:
            msg = f"The number of negatives is unknown: {type(self.dataset).__name__} has no `__len__`. Define it."
            raise DataError(msg)
        return self.length


def as_stream(negatives: Any) -> NegativeStream:
    """A plain data set as a :class:`NegativeStream` with the defaults."""
    return negatives if isinstance(negatives, NegativeStream) else NegativeStream(negatives)


def _is_stateful(source: Any) -> bool:
    return hasattr(source, "state_dict") and hasattr(source, "load_state_dict")


def _check_dataset(dataset: Any) -> None:
    kind = type(dataset).__name__
    indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if isinstance(dataset, Tensor) or (indexed and not isinstance(dataset, IterableDataset)):
        msg = (
            f"Expected `negatives` to be a stream, but got a {kind}, which can be indexed. Put positives and negatives "
            "into one `train_dataset` with labels."
        )
        raise DataError(msg)
    if not hasattr(dataset, "__iter__"):
        msg = (
            f"Expected `negatives` to be an iterable data set, but got a {kind}. Pass a "
            "torch.utils.data.IterableDataset, or a NegativeStream of one."
        )
        raise ArgumentError(msg)
    if isinstance(dataset, DataLoader) and dataset.batch_sampler is not None:
        msg = (
            f"`negatives` is a {kind} that yields batches, but single examples are wanted. Make it with "
            "`batch_size=None`, or pass its data set if that is a stream."
        )
        raise ArgumentError(msg)


def least_of_ranks(value: int) -> int:
    """The smallest value of all ranks; a collective where there are several."""
    return min(int(own) for own in gather_objects(value))


class Place(NamedTuple):
    """The place of the next example of a stream."""

    #: Number of examples that the run has read, over all passes.
    position: int = 0
    passes: int = 0
    #: Number of examples read in the current pass.
    index: int = 0  # type: ignore[assignment]  # shadows tuple.index, which nobody calls on a place
    #: States of data set and iterator; ``None`` if they have none.
    state: tuple[Any, Any] | None = None


class StreamReader:
    """Reads part ``index`` of ``count`` of a stream, in the training process or in a worker."""

    def __init__(self, stream: NegativeStream, index: int = 0, count: int = 1) -> None:
        self.stream, self.which, self.place = stream, (index, count), Place()
        shard = stream.split == "shard"
        self._dataset = stream.dataset.shard(num_shards=count, index=index) if shard else stream.dataset
        self._iterator: Iterator[Any] | None = None

    def seek(self, place: Place | None, target: int) -> None:
        """Go to the place behind ``target`` examples, from ``place`` if the reader has not begun or is past them."""
        with self._as_split():
            if place is not None and (self._iterator is None or self.place.position > target):
                self._open(place)
            elif self._iterator is None or (self._shares_object() and self.stream.owner is not self):
                self._open(self.place)  # another reader has moved the data set in the meantime
            self._read(target - self.place.position, _CHUNK)

    def share(self, count: int, world: World, seed: int, step: int, *, once: bool = False) -> list[Any]:
        """This rank's next examples, without their labels; what the stream draws for them depends on the step alone.

        ``once``: fewer, but as many on all ranks, where the first pass ends; none behind its end.
        """
        dealt = world.size if self.stream.split == "deal" else 1
        with seeded_items(seed, step) as reseed:
            # Positives are seeded by their rows, which are not negative.
            reseed(-1 - (0 if self.stream.split == "deal" else self.which[0]))
            taken = self.take(count * dealt, within_pass=once)
            if once and self.place.index == len(taken) < dealt:  # a stream of fewer examples than ranks begins again
                taken += self.take(dealt - len(taken))
        if once:
            taken = taken[: len(taken) // dealt * dealt if dealt > 1 else least_of_ranks(len(taken))]
        return taken[world.rank if dealt > 1 else 0 :: dealt]

    def take(self, count: int, *, within_pass: bool = False) -> list[Any]:
        """The next examples, without their labels; ``within_pass``: fewer, where the pass ends behind some of them."""
        with self._as_split():
            taken = self._read(count, None, within_pass=within_pass)
            own = self._dataset.state_dict() if _is_stateful(self._dataset) else None
            separate: Any = self._iterator if self._iterator is not self._dataset else None
            inner = separate.state_dict() if _is_stateful(separate) else None
        stateless = own is None and inner is None
        self.place = self.place._replace(state=None if stateless else copy.deepcopy((own, inner)))
        return inputs_of_negatives(taken)

    def _read(self, count: int, at_once: int | None, *, within_pass: bool = False) -> list[Any]:
        """The next ``count`` examples; those that are read ``at_once`` are thrown away."""
        taken: list[Any] = []
        while count > 0:
            # an iterator with a length is False at its end, so it is compared with None
            source = () if self._iterator is None else self._iterator
            items = list(islice(source, count if at_once is None else min(count, at_once)))
            if not items and within_pass and self.place.index:
                break
            if not items:
                self._begin_pass()
            elif at_once is None:
                taken += items
            count -= len(items)
            position, index = self.place.position + len(items), self.place.index + len(items)
            self.place = self.place._replace(position=position, index=index)
        return taken

    def _begin_pass(self) -> None:
        if self.place.index == 0:
            part = "" if self.stream.split == "deal" or self.which[1] == 1 else " in part {} of {}".format(*self.which)
            msg = (
                f"The stream of negatives yields no example{part}. Check its source, and let `__iter__` begin anew "
                "each time (a generator can be read only once)."
            )
            raise DataError(msg)
        self._open(Place(self.place.position, self.place.passes + 1))

    def _open(self, place: Place) -> None:
        """Start a new iteration from a place; one without a state is the beginning of a pass."""
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(place.passes)
        dataset_state, iterator_state = copy.deepcopy(place.state) or (None, None)
        if dataset_state is not None:
            self._dataset.load_state_dict(dataset_state)
        elif place.passes == place.index == 0 and self._shares_object() and self.stream.owner is not None:
            self._dataset.load_state_dict(copy.deepcopy(self.stream.initial))
        iterator: Any = iter(self._dataset)
        if iterator_state is not None:
            iterator.load_state_dict(iterator_state)
        self._iterator, self.place, self.stream.owner = iterator, place, self

    def _shares_object(self) -> bool:
        return self.stream.initial is not None and self._dataset is self.stream.dataset

    @contextlib.contextmanager
    def _as_split(self) -> Iterator[None]:
        """Hide from the data set that it runs in a worker, unless ``split="own"``."""
        worker = _utils.worker
        info = worker._worker_info
        if self.stream.split != "own":
            worker._worker_info = None
        try:
            yield
        finally:
            worker._worker_info = info


def inputs_of_negatives(items: list[Any]) -> list[Any]:
    """Items without their labels: inputs, or tuples whose last entry is the label 0. A single entry is an input."""
    if not items or not isinstance(items[0], (tuple, list)) or len(items[0]) == 0:
        return items
    if len(items[0]) == 1:
        return [item[0] for item in items]
    for item in items:
        label = item[-1]
        wrong = label != 0
        if bool(wrong.any()) if hasattr(wrong, "any") else wrong:
            msg = (
                f"Expected the stream of negatives to yield inputs, or tuples that end with the label 0, but got "
                f"{type(item).__name__} ending with {label!r}. Leave positives out of the stream; inputs of several "
                "parts can be a mapping."
            )
            raise DataError(msg)
    return [item[0] if len(item) == 2 else tuple(item[:-1]) for item in items]


#: The place of each substream. Substreams are the parts of the stream that this process or its workers read.
Places = dict[int, Place]


class StreamCursor:
    """Remembers the stream's place after each of the last steps, for checkpoints and for the next epoch."""

    def __init__(self, stream: NegativeStream) -> None:
        self.stream = stream
        # A batch may be handed out before training on the previous one has ended.
        self._history: deque[tuple[int, Places]] = deque(maxlen=4)
        self._loaded: tuple[int, list[Any]] | None = None
        #: How many examples of each substream readers were asked for.
        self.requested: dict[int, int] = {}
        self._checked = False

    def begin(self, step: int, num_substreams: int, *, fresh: bool) -> Places:
        """Where the substreams continue after ``step`` batches; ``fresh``: whether readers have read nothing yet."""
        if self._loaded is not None:
            fresh, saved, self._loaded = True, (self._loaded[0], self._own_loaded()), None
            self._history.clear()
            if saved[1] is not None:
                self._history.append((saved[0], {k: Place(*entries) for k, entries in enumerate(saved[1]["places"])}))
        start = dict.fromkeys(range(num_substreams), Place())
        places = start if step == 0 else self._at(step)
        if places is None or set(places) != set(start):
            places = start
            if self.stream.split == "deal":
                _say_starts_over(
                    "the checkpoint does not hold its place. Resume from one that was written with this stream"
                )
            else:
                _say_starts_over(
                    "its places were saved for other numbers of processes or workers, or not at all. Resume with the "
                    "same numbers, or use NegativeStream(..., split='deal')"
                )
        elif any(place.state is None and place.position for place in places.values()):
            if fresh:
                name = type(self.stream.dataset).__name__
                _say_starts_over(f"{name} has no `state_dict` and `load_state_dict`. Give it both")
                places = {k: Place(place.position) for k, place in places.items()}
            else:  # An epoch cut short leaves prefetched examples unused, and the stream can't go back to them.
                behind = self.requested
                places = {k: p._replace(position=max(p.position, behind[k])) for k, p in places.items()}
        self._history.append((step, places))
        self.requested = {substream: place.position for substream, place in places.items()}
        return dict(places)

    def record(self, step: int, substream: int, place: Place) -> None:
        """Note that ``step`` batches were handed out, and the substream's place behind the last one."""
        if place.state is not None and not self._checked:
            _check_can_be_saved(self.stream, place.state)
            self._checked = True
        latest = self._history[-1][1] if self._history else {}
        self._history.append((step, latest | {substream: place}))

    def state(self, step: int) -> dict[str, Any] | None:
        """This process's part of a checkpoint after ``step`` steps."""
        if self._loaded is not None and self._loaded[0] == step:  # nothing was read since
            return self._own_loaded()
        places = self._at(step)
        return {"places": [list(place) for _, place in sorted(places.items())]} if places else None

    def load(self, step: int, states: list[dict[str, Any] | None]) -> None:
        """Continue from a checkpoint that holds the :meth:`state` of each process."""
        self._loaded = step, states

    def _own_loaded(self) -> dict[str, Any] | None:
        """What the checkpoint holds for this process."""
        if self._loaded is None:
            return None
        world, states = current_world(), self._loaded[1]
        if self.stream.split == "deal":  # all processes have read the same examples
            own: dict[str, Any] | None = states[min(world.rank, len(states) - 1)]
        else:
            own = states[world.rank] if len(states) == world.size else None
        return own

    def _at(self, step: int) -> Places | None:
        return next((places for at, places in reversed(self._history) if at == step), None)


def _say_starts_over(why: str) -> None:
    rank_zero_warn(f"The stream of negatives starts over while training goes on: {why}.", category=TPAUCWarning)


def _check_can_be_saved(stream: NegativeStream, state: Any) -> None:
    """Raise now if a checkpoint with this state could not be read later."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    try:
        torch.load(file, weights_only=True)
    except pickle.UnpicklingError as error:
        msg = (
            f"The `state_dict` of the stream of negatives ({type(stream.dataset).__name__}) holds what a checkpoint "
            f"can't: {str(error).splitlines()[0]} Return numbers, strings, tensors, lists and dictionaries of these."
        )
        raise DataError(msg) from error


class StreamPlan(NamedTuple):
    """The positives of one step on one rank, and where its negatives are read."""

    plan: BatchPlan
    world: World
    #: Number of the substream that the negatives come from, and how many this process has.
    substream: tuple[int, int]
    #: Number of examples that the substream's reader has read before.
    target: int
    #: Where the reader begins if it has not begun yet, or is past the target.
    place: Place | None


class _StreamBatches(Dataset[Any]):
    """Makes batches of plans; each comes with its substream and the place behind it."""

    def __init__(self, stream: NegativeStream, fetch: Fetcher, seed: int) -> None:
        self.stream, self.fetch, self.seed = stream, fetch, seed
        self._reader: StreamReader | None = None

    def __getitem__(self, step: StreamPlan | None) -> tuple[PosNegBatch, int, Place] | None:
        if step is None:
            return None
        plan, world, (substream, num_substreams) = step.plan, step.world, step.substream
        if self._reader is None:
            count = world.size * num_substreams
            self._reader = StreamReader(self.stream, world.rank * num_substreams + substream, count)
        self._reader.seek(step.place, step.target)
        own = self._reader.share(plan.sizes.num_neg + plan.sizes.num_dual_neg, world, self.seed, plan.step)
        inputs = collate_with_rows(self.fetch, plan.rows, plan.step, own)
        return batch_of(plan, inputs), substream, self._reader.place


class StreamedLoader(PosNegLoader):
    """Training batches whose negatives come from a stream. ``cursor`` knows its place; ``seed`` seeds what it draws."""

    def __init__(self, *args: Any, cursor: StreamCursor, seed: int = 0, **options: Any) -> None:
        super().__init__(*args, **options)
        stream, num_workers = cursor.stream, self._source.num_workers
        inner = getattr(stream.dataset, "num_workers", 0)
        if num_workers > 0 and isinstance(inner, int) and inner > 0:
            msg = (
                f"`negatives` is a {type(stream.dataset).__name__} with `num_workers={inner}`, but the data module's "
                f"own workers (`num_workers={num_workers}`), which read it, can't start others. Set one of both to 0."
            )
            raise ArgumentError(msg)
        self.cursor, self.seed = cursor, seed
        self._source.batches = self._make()
        self._fresh = True

    def _make(self) -> _StreamBatches:
        return _StreamBatches(self.cursor.stream, self.fetch, self.seed)

    def _batches(self, step: int, count: int) -> Iterator[PosNegBatch]:
        num_substreams = self.cursor.stream.num_substreams(self._source.num_workers)
        places = self.cursor.begin(step, num_substreams, fresh=self._fresh)
        self._fresh = not self._source.keeps_workers
        for result in self._source.run(self._plans(step, count, places)):
            if result is not None:
                batch, substream, place = result
                step += 1
                self.cursor.record(step, substream, place)
                yield batch

    def _plans(self, step: int, count: int, places: Places) -> Iterator[StreamPlan | None]:
        num_substreams, readers = len(places), max(1, self._source.num_workers)
        # torch gives plans to the workers in turns. Empty plans keep each substream with its worker.
        yield from [None] * (step % num_substreams)
        world = current_world()
        for k, plan in enumerate(self.batch_plans.plans(step, count)):
            substream = plan.step % num_substreams
            own = plan.sizes.num_neg + plan.sizes.num_dual_neg
            target = self.cursor.requested[substream]
            self.cursor.requested[substream] += own * (world.size if self.cursor.stream.split == "deal" else 1)
            place = places[substream] if k < readers else None
            yield StreamPlan(plan, world, (substream, num_substreams), target, place)

    def whole_epoch(self, most: int | None = None) -> Iterator[PosNegBatch]:
        """The positives of the next epoch, with the first negatives of the stream, read in this process."""
        batches, world, place = self._make(), current_world(), Place()
        for plan in self.batch_plans.plans(self._where().step, len(self) if most is None else min(most, len(self))):
            batch, _, place = cast(Any, batches[StreamPlan(plan, world, (0, 1), place.position, place)])
            yield batch

    def close(self) -> None:
        """See :meth:`PosNegLoader.close`."""
        super().close()
        self._fresh = True


class ScoredStream:
    """Evaluation batches of the first negatives of a stream, for solving the dual variables.

    All ranks score the same number, so that they make the same number of forward passes. ``example_id`` counts
    ``0 .. num_examples - 1``. A shorter stream is scored once, up to the end of the part that ends first. What training
    reads does not change. ``fetch`` knows how to collate items; ``None`` stacks them.
    """

    def __init__(self, stream: NegativeStream, batch_size: int, fetch: Fetcher | None = None) -> None:
        self.stream, self.batch_size, self._fetch = stream, batch_size, fetch
        self._count = stream.num_scored if stream.length is None else min(stream.num_scored, stream.length)
        self._read: int | None = None

    @property
    def num_examples(self) -> int:
        """Number of negatives over all ranks, a multiple of the number of ranks; an upper bound until they are read."""
        own = max(1, self._count // current_world().size) if self._read is None else self._read
        return own * current_world().size

    def __len__(self) -> int:
        return -(-self.num_examples // current_world().size // self.batch_size)

    def __iter__(self) -> Iterator[EvalBatch]:
        self._read = None
        world, own = current_world(), self.num_examples // current_world().size
        reader = StreamReader(self.stream, world.rank, world.size)
        reader.seek(Place(), 0)
        start = 0
        while start < own:
            negatives = reader.share(min(self.batch_size, own - start), world, 0, start, once=True)
            if not negatives:
                break
            ids = torch.arange(start, start + len(negatives)) * world.size + world.rank
            yield EvalBatch(collate_with_rows(self._fetch, None, start, negatives), torch.zeros_like(ids), ids)
            start += len(negatives)
        self._read = start
