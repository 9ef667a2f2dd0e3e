"""Negatives that are read one after another instead of being indexed, and batches that hold them.

Readers run ahead of training if batches are prefetched. So each batch knows the place behind it, and a checkpoint
stores the place behind the last batch that was trained on, even if worker processes read the stream.
"""

import contextlib
import copy
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, _utils

from lightning_tpauc.data.batch import EvalBatch, PosNegBatch
from lightning_tpauc.data.examples import ItemFetcher
from lightning_tpauc.data.loader import PosNegLoader, batch_of
from lightning_tpauc.data.sampler import BatchPlan, World, current_world
from lightning_tpauc.data.seeding import seeded_items
from lightning_tpauc.distributed import gather_objects
from lightning_tpauc.errors import ArgumentError, DataError, warn_on_rank_zero
from lightning_tpauc.functional.checks import check_choice, check_count

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
            Face's streams have, a resumed run continues exactly where the stream stood. Others start over, with a
            warning. (The state of Hugging Face's ``shuffle`` lacks its buffer.) The state must be readable by
            ``torch.load(weights_only=True)``: numbers, strings, tensors, lists, tuples and dictionaries of these.
        split: how processes and workers share the stream. ``"deal"``: each process reads the whole stream and keeps its
            part of each step. So a step has the same negatives with any number of workers and processes (maybe in
            another order), but every process reads all. ``"shard"``: each reads its own
            ``dataset.shard(num_shards=..., index=...)``. ``"own"``: the data set divides itself by the rank and
            :func:`torch.utils.data.get_worker_info`, as WebDataset and litdata do. Only with ``"own"``, the data set
            sees that it runs in a worker.
        num_scored: number of negatives that are scored for the exact start of the dual variables.

    Raises:
        ArgumentError: if an argument is out of range, or the data set yields batches.
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
        if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and not isinstance(dataset, IterableDataset):
            raise DataError(
                f"Expected `negatives` to be a stream, but got a {type(dataset).__name__}, which can be indexed and "
                "would be read in its order. Put positives and negatives into one `train_dataset` with labels."
            )
        if isinstance(dataset, DataLoader) and dataset.batch_sampler is not None:
            raise ArgumentError(
                "`negatives` is a DataLoader that yields batches, not examples. Make it with `batch_size=None`."
            )
        check_choice(split, "split", ("deal", "shard", "own"))
        check_count(num_scored, "num_scored", 1)
        self.dataset, self.split, self.num_scored = cast(Any, dataset), split, num_scored
        #: The state before the first read; ``None`` if the data set has no state.
        self.initial = _state_of(dataset)
        if self.initial is not None:
            # torchdata's loaders make an iterator when they are asked for the state, and return it at the next `iter`,
            # which would ignore a state that is loaded before.
            iter(self.dataset)
        #: The reader that iterates now. A data set that holds its own position serves one reader at a time.
        self.owner: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"owner": None}  # a reader's iterator can't be sent to a worker

    def part(self, world: World, substream: int = 0, num_substreams: int = 1) -> tuple[int, int]:
        """Which part of the stream, of how many, one of a process's substreams is; a dealt stream has one part."""
        if self.split == "deal":
            return 0, 1
        return world.rank * num_substreams + substream, world.size * num_substreams

    @property
    def length(self) -> int | None:
        """Number of examples of one pass; ``None`` if the data set does not say."""
        try:
            return len(self.dataset)
        except TypeError:
            return None


def _state_of(source: Any) -> Any:
    """A copy of the state of a data set or an iterator, which may go on changing it; ``None`` if it has none."""
    stateful = hasattr(source, "state_dict") and hasattr(source, "load_state_dict")
    return copy.deepcopy(source.state_dict()) if stateful else None


class Place(NamedTuple):
    """The place of the next example of a stream."""

    #: Number of examples that the run has read, over all passes.
    position: int = 0
    passes: int = 0
    #: States of data set and iterator; ``None`` if they have none.
    state: tuple[Any, Any] | None = None


class StreamReader:
    """Reads part ``index`` of ``count`` of a stream, in the training process or in a worker."""

    def __init__(self, stream: NegativeStream, index: int = 0, count: int = 1) -> None:
        self.stream, self.index, self.place = stream, index, Place()
        shard = stream.split == "shard"
        self._dataset = stream.dataset.shard(num_shards=count, index=index) if shard else stream.dataset
        self._shares_object = stream.initial is not None and not shard
        self._iterator: Iterator[Any] | None = None

    def seek(self, place: Place, target: int) -> None:
        """Go to the place behind ``target`` examples, from ``place`` if the reader has not begun or is past them."""
        with self._as_split():
            if self._iterator is None or self.place.position > target:
                self._open(place)
            elif self._shares_object and self.stream.owner is not self:
                self._open(self.place)  # another reader has moved the data set in the meantime
            while self.place.position < target:
                self._read(min(_CHUNK, target - self.place.position))

    def share(self, count: int, world: World, seed: int, step: int, *, once: bool = False) -> list[Any]:
        """This rank's next examples, without their labels; what the stream draws for them depends on the step alone.

        ``once``: fewer, but as many on all ranks, where the first pass ends; none behind its end.
        """
        rank, size = world if self.stream.split == "deal" else (0, 1)
        with self._as_split(), seeded_items(seed, step) as reseed:
            reseed(-1 - self.index)  # positives are seeded by their rows, which are not negative
            taken = self._read(count * size, once=once)
            own = _state_of(self._dataset)
            inner = _state_of(self._iterator) if self._iterator is not self._dataset else None
        self.place = self.place._replace(state=None if own is None and inner is None else (own, inner))
        if once:
            taken = taken[: min(gather_objects(len(taken))) // size * size]
        return inputs_of_negatives(taken[rank::size])

    def _read(self, count: int, *, once: bool = False) -> list[Any]:
        taken: list[Any] = []
        begun = False
        while len(taken) < count:
            items = list(islice(cast(Iterator[Any], self._iterator), count - len(taken)))
            if begun and not items:
                raise DataError(
                    f"Part {self.index} of the stream of negatives yields no example. Check its source, and let "
                    "`__iter__` begin anew each time (a generator can be read only once)."
                )
            taken += items
            self.place = self.place._replace(position=self.place.position + len(items))
            begun = not items
            if begun and once and self.place.position:
                break
            if begun:
                self._open(Place(self.place.position, self.place.passes + 1))
        return taken

    def _open(self, place: Place) -> None:
        """Start a new iteration from a place; one without a state is the beginning of a pass."""
        state = (self.stream.initial, None) if place == Place() and self._shares_object else place.state
        dataset_state, iterator_state = copy.deepcopy(state) or (None, None)
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(place.passes)
        if dataset_state is not None:
            self._dataset.load_state_dict(dataset_state)
        iterator: Any = iter(self._dataset)
        if iterator_state is not None:
            iterator.load_state_dict(iterator_state)
        self._iterator, self.place, self.stream.owner = iterator, place, self

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
    if not items or not isinstance(items[0], (tuple, list)):
        return items
    for item in items:
        if len(item) > 1 and np.any(np.asarray(item[-1]) != 0):
            raise DataError(
                f"Expected the stream of negatives to yield inputs, or tuples that end with the label 0, but got "
                f"{type(item).__name__} ending with {item[-1]!r}. Leave positives out; several inputs can be a mapping."
            )
    return [item[0] if len(item) <= 2 else tuple(item[:-1]) for item in items]


#: The places of the substreams, the parts of the stream that this process or its workers read.
Places = tuple[Place, ...]


class StreamCursor:
    """Remembers the stream's place after each of the last steps, for checkpoints and for the next epoch."""

    def __init__(self, stream: NegativeStream) -> None:
        self.stream = stream
        # A batch may be handed out before training on the previous one has ended.
        self._history: deque[tuple[int, Places]] = deque(maxlen=4)

    def begin(self, step: int, num_substreams: int, requested: list[int] | None) -> Places:
        """Where the substreams continue after ``step`` batches.

        ``requested`` says how many examples of each its reader was asked for; ``None``, that the readers are new.
        """
        start = (Place(),) * num_substreams
        why: str | None = None
        places = self._at(step) if step else start
        if places is None or len(places) != num_substreams:
            places = start
            why = (
                "the checkpoint holds no place for this stream and these numbers of processes and workers. Resume with "
                "the same, or use NegativeStream(..., split='deal')"
            )
        elif any(place.state is None and place.position for place in places):
            if requested is None:
                places = tuple(Place(place.position) for place in places)
                why = f"{type(self.stream.dataset).__name__} has no `state_dict` and `load_state_dict`. Give it both"
            else:  # An epoch cut short leaves prefetched examples unused, and the stream can't go back to them.
                read = zip(places, requested, strict=True)
                places = tuple(p._replace(position=max(p.position, behind)) for p, behind in read)
        if why is not None:
            warn_on_rank_zero(f"The stream of negatives starts over while training goes on: {why}.")
        self._history.append((step, places))
        return places

    def record(self, step: int, substream: int, place: Place) -> None:
        """Note that ``step`` batches were handed out, and the substream's place behind the last one."""
        places = self._history[-1][1]
        self._history.append((step, (*places[:substream], place, *places[substream + 1 :])))

    def state(self, step: int) -> dict[str, Any] | None:
        """This process's part of a checkpoint after ``step`` steps."""
        places = self._at(step)
        return None if places is None else {"places": [list(place) for place in places]}

    def load(self, step: int, states: list[dict[str, Any] | None]) -> None:
        """Continue from a checkpoint that holds the :meth:`state` of each process."""
        self._history.clear()
        rank, size = current_world()
        # where the stream is dealt, all processes have read the same examples
        known = self.stream.split == "deal" or len(states) == size
        own = states[min(rank, len(states) - 1)] if known else None
        if own is not None:
            self._history.append((step, tuple(Place(*entries) for entries in own["places"])))

    def _at(self, step: int) -> Places | None:
        return next((places for at, places in reversed(self._history) if at == step), None)


class StreamPlan(NamedTuple):
    """The positives of one step on one rank, and where its negatives are read."""

    plan: BatchPlan
    world: World
    #: Which part of the stream they come from, of how many.
    part: tuple[int, int]
    #: Number of examples that the substream's reader has read before.
    target: int
    #: Where the reader begins if it has not begun yet, or is past the target.
    place: Place


class _StreamBatches:
    """Makes batches of plans; each comes with the place behind it."""

    def __init__(self, stream: NegativeStream, fetch: ItemFetcher, seed: int) -> None:
        self.stream, self.fetch, self.seed = stream, fetch, seed
        self._reader: StreamReader | None = None

    def __call__(self, step: StreamPlan | None) -> tuple[PosNegBatch, Place] | None:
        if step is None:
            return None
        plan, world = step.plan, step.world
        if self._reader is None:
            self._reader = StreamReader(self.stream, *step.part)
        self._reader.seek(step.place, step.target)
        own = self._reader.share(plan.sizes.num_neg + plan.sizes.num_dual_neg, world, self.seed, plan.step)
        return batch_of(plan, self.fetch.beside(plan.rows, plan.step, own)), self._reader.place


class StreamedLoader(PosNegLoader):
    """Training batches whose negatives come from a stream. ``cursor`` knows its place; ``seed`` seeds what it draws."""

    def __init__(self, *args: Any, cursor: StreamCursor, seed: int = 0, **options: Any) -> None:
        self.cursor, self.seed = cursor, seed
        #: How many examples of each substream its reader was asked for; ``None`` if readers start anew.
        self._requested: list[int] | None = None
        super().__init__(*args, **options)

    def _maker(self) -> Callable[[Any], Any]:
        return _StreamBatches(self.cursor.stream, cast("ItemFetcher", self.fetch), self.seed)

    def _batches(self, step: int, count: int) -> Iterator[PosNegBatch]:
        # what a process reads itself, or what each of its workers reads
        num_substreams = 1 if self.cursor.stream.split == "deal" else max(1, self._source.num_workers)
        persistent = self._source.options.get("persistent_workers", True)
        places = self.cursor.begin(step, num_substreams, self._requested if persistent else None)
        self._requested = [place.position for place in places]
        for result in self._source.run(self._plans(step, count, places, self._requested)):
            if result is not None:
                batch, place = result
                step += 1
                self.cursor.record(step, (step - 1) % num_substreams, place)
                yield batch

    def _plans(self, step: int, count: int, places: Places, requested: list[int]) -> Iterator[StreamPlan | None]:
        num_substreams = len(places)
        # torch gives plans to the workers in turns. Empty plans keep each substream with its worker.
        yield from [None] * (step % num_substreams)
        world, stream = current_world(), self.cursor.stream
        for plan in self.batch_plans.plans(step, count):
            substream = plan.step % num_substreams
            own = plan.sizes.num_neg + plan.sizes.num_dual_neg
            part, target = stream.part(world, substream, num_substreams), requested[substream]
            requested[substream] += own * (world.size if stream.split == "deal" else 1)
            yield StreamPlan(plan, world, part, target, places[substream])

    def close(self) -> None:
        """See :meth:`PosNegLoader.close`."""
        super().close()
        self._requested = None


class ScoredStream:
    """Evaluation batches of the first negatives of a stream, for solving the dual variables.

    All ranks score the same number. A shorter stream is scored once, up to the end of the part that ends first. What
    training reads does not change.
    """

    def __init__(self, stream: NegativeStream, batch_size: int, fetch: ItemFetcher) -> None:
        self.stream, self.batch_size, self._fetch = stream, batch_size, fetch
        self._most = stream.num_scored if stream.length is None else min(stream.num_scored, stream.length)
        self._read: int | None = None

    @property
    def num_examples(self) -> int:
        """Number of negatives over all ranks, a multiple of the number of ranks; an upper bound until they are read."""
        size = current_world().size
        return size * (max(1, self._most // size) if self._read is None else self._read)

    def __len__(self) -> int:
        return -(-self.num_examples // current_world().size // self.batch_size)

    def __iter__(self) -> Iterator[EvalBatch]:
        world = current_world()
        own, done = self.num_examples // world.size, 0
        reader = StreamReader(self.stream, *self.stream.part(world))
        reader.seek(Place(), 0)
        while done < own:
            negatives = reader.share(min(self.batch_size, own - done), world, 0, done, once=True)
            if not negatives:
                break
            ids = torch.arange(done, done + len(negatives)) * world.size + world.rank
            yield EvalBatch(self._fetch.beside(None, done, negatives), torch.zeros_like(ids), ids)
            done += len(negatives)
        self._read = done
