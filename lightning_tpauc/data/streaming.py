"""Negatives that are read one after another instead of being indexed."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple, cast

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, _utils

from lightning_tpauc.data.batch import EvalBatch, PosNegBatch
from lightning_tpauc.data.examples import Fetcher, as_tensors, collate_with_rows, cut_inputs, join_inputs, num_examples
from lightning_tpauc.data.loader import Position, PosNegLoader
from lightning_tpauc.data.sampler import BatchPlan, BatchSampler, World, current_world, least_of_ranks
from lightning_tpauc.data.seeding import seeded_items
from lightning_tpauc.errors import ArgumentError, DataError, TPAUCWarning
from lightning_tpauc.functional.checks import check_choice


class NegativeStream:
    """A stream of negatives, and how it is read. A plain iterable data set is read with the defaults.

    Each step reads ``num_neg`` examples and then ``num_dual_neg`` others, so the two batches are disjoint. Examples are
    taken in the stream's order: shuffle in the stream if neighbours resemble each other. When the stream ends, it is
    started again with ``iter(dataset)``, after ``dataset.set_epoch(pass)`` if it has that method.

    Args:
        dataset: yields inputs of negatives, of the same kind as those of the positives, or tuples that end with the
            label 0. If it or its iterator has ``state_dict()`` and ``load_state_dict()``, as torchdata's and Hugging
            Face's streams have, a resumed run continues exactly where the stream stood. (The state of Hugging Face's
            ``shuffle`` leaves out its buffer.) The state must be readable by ``torch.load(weights_only=True)``:
            numbers, strings, tensors, and lists, tuples and dictionaries of these.
        split: how processes and workers share the stream. ``"deal"``: each process reads the whole stream and keeps its
            part of each step. So the negatives of a step do not depend on the number of workers and processes (their
            order may), but every process pays for reading all. ``"shard"``: each reads its own
            ``dataset.shard(num_shards=..., index=...)``. ``"own"``: the data set divides itself by the rank and
            :func:`torch.utils.data.get_worker_info`, as WebDataset and litdata do. Only with ``"own"``, the data set
            sees that it runs in a worker.
        blocks: whether the data set yields blocks of examples, which is faster than single examples. A block is a
            tensor, an array, or a tuple or mapping of these, with the examples along the first axis. ``None``: a
            ``DataLoader`` yields blocks unless its ``batch_size`` is ``None``; other data sets do not. Even with
            blocks, ``len(dataset)`` is the number of examples.
        resume: what a resumed run does, with a warning, if the data set has no ``state_dict``. ``"restart"`` begins
            with its first example. ``"skip"`` reads past as many examples as were consumed.
        num_scored: number of negatives that are scored for the exact start of the dual variables.

    Raises:
        ArgumentError: if an argument is out of range or the data set can't be iterated.

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
        blocks: bool | None = None,
        resume: Literal["restart", "skip"] = "restart",
        num_scored: int = 2**16,
    ) -> None:
        _check_dataset(dataset)
        check_choice(split, "split", ("deal", "shard", "own"))
        check_choice(resume, "resume", ("restart", "skip"))
        if num_scored < 1:
            msg = f"Expected `num_scored` of NegativeStream to be at least 1, but got {num_scored}."
            raise ArgumentError(msg)
        if split == "shard" and not hasattr(dataset, "shard"):
            msg = (
                f"`split='shard'` calls `shard(num_shards=..., index=...)`, but {type(dataset).__name__} has no such "
                "method. Use `split='deal'`."
            )
            raise ArgumentError(msg)
        self.dataset = cast(Any, dataset)
        self.split, self.resume, self.num_scored = split, resume, num_scored
        self.blocks = _yields_blocks(dataset, blocks)
        #: The state before the first read. It is pickled, since a data set may change the object that it returned.
        self.initial = _initial_state(self.dataset) if is_stateful(dataset) else None
        #: The reader that iterates now. A data set that holds its own position serves one reader at a time.
        self.owner: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # A reader's iterator can't be sent to a worker. The worker only needs to know that there was a reader.
        return self.__dict__ | {"owner": self.owner and "in another process"}

    def num_substreams(self, num_workers: int) -> int:
        """Number of substreams that one process reads: one, or one for each worker."""
        return 1 if self.split == "deal" else max(1, num_workers)

    def part(self, index: int, count: int) -> Any:
        """The data set that reader ``index`` of ``count`` readers iterates."""
        return self.dataset.shard(num_shards=count, index=index) if self.split == "shard" else self.dataset

    @property
    def length(self) -> int | None:
        """Number of examples of one pass; ``None`` if the data set does not say."""
        try:
            batches = isinstance(self.dataset, DataLoader) and self.blocks
            return _num_examples(self.dataset) if batches else len(self.dataset)
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
    """A plain data set as a :class:`NegativeStream` with the defaults.

    Example:
        >>> as_stream(iter([0.5, 1.5])).resume
        'restart'
    """
    return negatives if isinstance(negatives, NegativeStream) else NegativeStream(negatives)


def _yields_blocks(dataset: Any, blocks: bool | None) -> bool:
    if not isinstance(dataset, DataLoader):
        return bool(blocks)
    batches = dataset.batch_sampler is not None
    if batches and blocks is False:
        msg = (
            "`blocks=False` of NegativeStream does not fit a DataLoader, which yields batches. Leave it out, or make "
            "the DataLoader with `batch_size=None`, which yields single examples."
        )
        raise ArgumentError(msg)
    return batches if blocks is None else blocks


def _num_examples(loader: DataLoader[Any]) -> int | None:
    """Number of examples in all batches; ``None`` if the loader has a batch sampler of its own."""
    if loader.batch_size is None:  # it has a batch sampler of its own
        return None
    of_stream = isinstance(loader.dataset, IterableDataset)
    count = len(loader.dataset if of_stream else loader.sampler)  # type: ignore[arg-type]  # TypeError if it has none
    return count // loader.batch_size * loader.batch_size if loader.drop_last else count


def refuse_nested_workers(stream: NegativeStream, num_workers: int) -> None:
    """Raise :class:`ArgumentError` if workers would have to start workers.

    Example:
        >>> refuse_nested_workers(NegativeStream(iter([0.5])), 2)
    """
    own = getattr(stream.dataset, "num_workers", 0)
    if num_workers > 0 and isinstance(own, int) and own > 0:
        msg = (
            f"`negatives` is a {type(stream.dataset).__name__} with `num_workers={own}`, but the data module's own "
            f"workers (`num_workers={num_workers}`), which read it, can't start others. Set one of both to 0."
        )
        raise ArgumentError(msg)


def is_stateful(source: Any) -> bool:
    """Whether a data set or iterator can save and load its position.

    Example:
        >>> is_stateful(iter([]))
        False
    """
    return hasattr(source, "state_dict") and hasattr(source, "load_state_dict")


def _initial_state(dataset: Any) -> bytes:
    state = pickle.dumps(dataset.state_dict())
    # torchdata's loaders make an iterator when they are asked for the state, and return it at the next `iter`. A state
    # that is loaded before this `iter` would be ignored, so call it now.
    iter(dataset)
    return state


def _check_dataset(dataset: Any) -> None:
    indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if isinstance(dataset, Tensor) or (indexed and not isinstance(dataset, IterableDataset)):
        msg = (
            f"Expected `negatives` to be a stream, but got a {type(dataset).__name__}, which can be indexed. Put "
            "positives and negatives into one `train_dataset` with labels."
        )
        raise DataError(msg)
    if not hasattr(dataset, "__iter__"):
        msg = (
            f"Expected `negatives` to be an iterable data set, but got a {type(dataset).__name__}. Pass a "
            "torch.utils.data.IterableDataset, or a NegativeStream of one."
        )
        raise ArgumentError(msg)


# Number of skipped examples that are read at once.
_CHUNK = 4096
_END = object()


class Place(NamedTuple):
    """The place of the next example of a stream.

    Attributes:
        position: number of examples that the run has read, over all passes.
        passes: number of finished passes.
        index: number of examples read in the current pass.
        state: pickled states of data set and iterator; ``None`` if they have none. It belongs to the start of a block.
        offset: number of examples to skip from the state on.
    """

    position: int = 0
    passes: int = 0
    index: int = 0  # type: ignore[assignment]  # shadows tuple.index, which nobody calls on a place
    state: bytes | None = None
    offset: int = 0


class StreamReader:
    """Reads one part of a stream.

    Example:
        >>> from torch.utils.data import IterableDataset
        >>> class Counter(IterableDataset):
        ...     def __iter__(self):
        ...         return iter(range(5))
        >>> reader = StreamReader(NegativeStream(Counter()))
        >>> reader.seek(Place(), 3)
        >>> reader.take(4), reader.place.position, reader.place.passes
        ([3, 4, 0, 1], 7, 1)
    """

    def __init__(self, stream: NegativeStream, index: int = 0, count: int = 1) -> None:
        self.stream = stream
        self.which = index, count
        self.place = Place()
        self._dataset = stream.part(index, count)
        self._iterator: Iterator[Any] | None = None
        self._block: Any = None

    def seek(self, place: Place | None, target: int) -> None:
        """Go to the place behind ``target`` examples.

        Args:
            place: a place at or before ``target``. The reader starts from it if it has not begun or is past the target.
            target: number of examples. Without a place, it is at least the reader's own position.

        Raises:
            DataError: if the stream has no example.
        """
        with self._as_split():
            if place is not None and (self._iterator is None or self.place.position > target):
                self._open(place)
            elif self._lost_its_place():
                self._open(self.place)
            self._read(target - self.place.position, keep=False)

    def take(self, count: int, *, within_pass: bool = False) -> list[Any]:
        """The next examples: a list of items, or of blocks of inputs.

        Args:
            count: number of examples.
            within_pass: whether to return fewer examples rather than begin another pass. The first example is always
                returned.

        Raises:
            DataError: if the stream has no example, or a label is not 0.
        """
        with self._as_split():
            taken = self._read(count, keep=True, within_pass=within_pass)
            if not self.stream.blocks:
                self.place = self.place._replace(state=self._state())
        return taken

    def _read(self, count: int, *, keep: bool, within_pass: bool = False) -> list[Any]:
        taken: list[Any] = []
        while count > 0:
            wanted = count if keep else min(count, _CHUNK)
            chunk, size = self._from_block(wanted) if self.stream.blocks else self._items(wanted)
            if size == 0:
                if within_pass and self.place.index:
                    break
                self._begin_pass()
                continue
            if keep:
                taken += chunk
            count -= size
            position, index = self.place.position + size, self.place.index + size
            self.place = self.place._replace(position=position, index=index)
        return taken

    def _items(self, count: int) -> tuple[list[Any], int]:
        items = list(islice(self._source(), count))
        return items, len(items)

    def _source(self) -> Iterator[Any]:
        # An iterator with a length is False at its end, so compare with None.
        return iter(()) if self._iterator is None else self._iterator

    def _from_block(self, count: int) -> tuple[list[Any], int]:
        while self._block is None:
            state = self._state()
            block = next(self._source(), _END)
            if block is _END:
                return [], 0
            (block,) = inputs_of_negatives([block])
            if num_examples(block):
                self._block = as_tensors(block)
                self.place = self.place._replace(state=state, offset=0)
        rest = num_examples(self._block)
        chunk = cut_inputs(self._block, slice(0, count)) if count < rest else self._block
        self._block = cut_inputs(self._block, slice(count, None)) if count < rest else None
        size = min(count, rest)
        self.place = self.place._replace(offset=self.place.offset + size)
        return [chunk], size

    def _begin_pass(self) -> None:
        if self.place.index == 0:
            part = "" if self.stream.split == "deal" or self.which[1] == 1 else " in part {} of {}".format(*self.which)
            if self.place.passes == 0:
                msg = (
                    f"The stream of negatives yields no example{part}. Check its source, and let `__iter__` begin anew "
                    "each time (a generator can be read only once)."
                )
            else:
                msg = (
                    f"The stream of negatives ended{part} and yields nothing when it is iterated again. Let `__iter__` "
                    "begin anew each time (a generator can be read only once)."
                )
            raise DataError(msg)
        self._open(Place(self.place.position, self.place.passes + 1))

    def _open(self, place: Place) -> None:
        """Start a new iteration from a place."""
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(place.passes)
        dataset_state, iterator_state = (None, None) if place.state is None else pickle.loads(place.state)  # noqa: S301
        if dataset_state is not None:
            self._dataset.load_state_dict(dataset_state)
        elif place.passes == place.index == 0 and self._shares_object() and self.stream.owner is not None:
            self._dataset.load_state_dict(pickle.loads(self.stream.initial or b""))  # noqa: S301  # our own
        iterator: Any = iter(self._dataset)
        if iterator_state is not None:
            iterator.load_state_dict(iterator_state)
        self._iterator, self._block = iterator, None
        self.stream.owner = self
        if place.state is None:
            self.place = place._replace(position=place.position - place.index, index=0, offset=0)
            self._read(place.index, keep=False)
            return
        self.place = place._replace(offset=0)
        if place.offset:
            self._from_block(place.offset)
            self.place = place

    def _state(self) -> bytes | None:
        own = self._dataset.state_dict() if is_stateful(self._dataset) else None
        separate = self._iterator is not self._dataset and is_stateful(self._iterator)
        inner = self._iterator.state_dict() if separate else None  # type: ignore[union-attr]  # is_stateful says so
        return None if own is None and inner is None else pickle.dumps((own, inner))

    def _shares_object(self) -> bool:
        return self.stream.initial is not None and self._dataset is self.stream.dataset

    def _lost_its_place(self) -> bool:
        """Whether nothing was read yet, or another reader has moved the data set in the meantime."""
        return self._iterator is None or (self._shares_object() and self.stream.owner is not self)

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
    """Check that the labels of items or blocks are 0, and leave them out.

    Args:
        items: inputs, or tuples whose last entry is the label 0. A single entry is an input.

    Raises:
        DataError: if a label is not 0.

    Example:
        >>> inputs_of_negatives([(2.5, 0), (1.5, 0)])
        [2.5, 1.5]
    """
    first = items[0]
    if not isinstance(first, (tuple, list)) or len(first) == 0:
        return items
    if len(first) == 1:
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
    """Remembers the stream's place after each of the last steps, for checkpoints and for the next epoch.

    If batches are prefetched, readers run ahead of training. So each batch carries the place behind it, and a
    checkpoint holds the place behind the last batch that was trained on.

    Args:
        stream: the stream.

    Example:
        >>> cursor = StreamCursor(NegativeStream(torch.utils.data.ChainDataset([])))
        >>> cursor.begin(step=0, num_substreams=1, fresh=True)
        {0: Place(position=0, passes=0, index=0, state=None, offset=0)}
        >>> cursor.record(1, 0, Place(position=64, index=64))
        >>> cursor.state(1)
        {'lanes': [[64, 0, 64, None, 0]]}
    """

    def __init__(self, stream: NegativeStream) -> None:
        self.stream = stream
        # A batch may be handed out before training on the previous one has ended.
        self._history: deque[tuple[int, Places]] = deque(maxlen=4)
        self._loaded: tuple[int, list[Any]] | None = None
        self._requested: dict[int, int] = {}
        self._checked = False

    def begin(self, step: int, num_substreams: int, *, fresh: bool) -> Places:
        """The places where the substreams continue when an iteration begins.

        Args:
            step: number of batches that were trained on.
            num_substreams: number of substreams that this process reads.
            fresh: whether its readers have read nothing yet.
        """
        fresh = fresh or self._loaded is not None
        self._adopt_loaded(num_substreams)
        start = dict.fromkeys(range(num_substreams), Place())
        places = start if step == 0 else self._at(step)
        if places is None or set(places) != set(start):
            _say_starts_over(*self._unknown())
            places = start
        elif any(place.state is None and place.position for place in places.values()):
            places = self._resumed(places) if fresh else self._after_prefetched(places)
        self._history.append((step, places))
        self._requested = {substream: place.position for substream, place in places.items()}
        return dict(places)

    def aside(self, step: int, num_substreams: int) -> Places:
        """Where a pass beside training begins: training's place if readers can be put there, else the beginning."""
        start = dict.fromkeys(range(num_substreams), Place())
        loaded = self._loaded is not None and self._loaded[0] == step
        places = (self._loaded_places(num_substreams) if loaded else self._at(step)) or start
        return {
            substream: place if place.state is not None else Place() for substream, place in (start | places).items()
        }

    def request(self, substream: int, count: int) -> int:
        """Note that a substream will read ``count`` examples; returns how many it has read before."""
        position = self._requested[substream]
        self._requested[substream] += count
        return position

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
        if not places:
            return None
        plain = [place._replace(state=_unpickled(place.state)) for _, place in sorted(places.items())]
        return {"lanes": [list(place) for place in plain]}

    def load(self, step: int, states: list[dict[str, Any] | None]) -> None:
        """Continue from a checkpoint that holds the :meth:`state` of each process."""
        self._loaded = step, states

    def _adopt_loaded(self, num_substreams: int) -> None:
        if self._loaded is None:
            return
        places = self._loaded_places(num_substreams)
        step, _ = self._loaded
        self._loaded = None
        self._history.clear()
        if places is not None:
            self._history.append((step, places))

    def _loaded_places(self, num_substreams: int) -> Places | None:
        """The places of this process's substreams in the checkpoint; ``None`` if it does not hold them."""
        own = self._own_loaded()
        if own is None or len(own["lanes"]) != num_substreams:
            return None
        places = [Place(*entries) for entries in own["lanes"]]
        return dict(enumerate(p if p.state is None else p._replace(state=pickle.dumps(p.state)) for p in places))

    def _own_loaded(self) -> dict[str, Any] | None:
        """What the checkpoint holds for this process."""
        if self._loaded is None:
            return None
        world, states = current_world(), self._loaded[1]
        if self.stream.split == "deal":
            rank: int | None = min(world.rank, len(states) - 1)  # All processes have read the same examples.
        else:
            rank = world.rank if len(states) == world.size else None
        own: dict[str, Any] | None = states[rank] if rank is not None else None
        return own

    def _at(self, step: int) -> Places | None:
        return next((places for at, places in reversed(self._history) if at == step), None)

    def _resumed(self, places: Places) -> Places:
        why = f"{type(self.stream.dataset).__name__} has no `state_dict` and `load_state_dict`"
        if self.stream.resume == "skip":
            count = sum(place.index for place in places.values())
            text = f"The stream of negatives can't be put where it stood ({why}): {count} examples are read past first."
            rank_zero_warn(text, category=TPAUCWarning)
            return places
        remedy = "Give it both, or pass NegativeStream(..., resume='skip') to read past what was consumed."
        _say_starts_over(why, remedy)
        return {substream: Place(position=place.position) for substream, place in places.items()}

    def _after_prefetched(self, places: Places) -> Places:
        """An epoch cut short leaves prefetched examples unused. A stream that can't go back continues behind them."""
        return {
            substream: p._replace(position=max(p.position, self._requested[substream]))
            for substream, p in places.items()
        }

    def _unknown(self) -> tuple[str, str]:
        if self.stream.split == "deal":
            return "the checkpoint does not hold its place", "Resume from one that was written with this stream."
        why = "its places were saved for other numbers of processes or workers, or not at all"
        return why, "Resume with the same numbers, or use NegativeStream(..., split='deal')."


def _say_starts_over(why: str, remedy: str) -> None:
    text = f"The stream of negatives starts over while training goes on: {why}. {remedy}"
    rank_zero_warn(text, category=TPAUCWarning)


def _unpickled(state: bytes | None) -> Any:
    return None if state is None else pickle.loads(state)  # noqa: S301  # pickled by a reader of this run


def _check_can_be_saved(stream: NegativeStream, state: bytes) -> None:
    """Raise now if a checkpoint with this state could not be read later."""
    file = io.BytesIO()
    torch.save(_unpickled(state), file)
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
    """The examples of one step on one rank, and the place of its negatives.

    Attributes:
        plan: the sampler's plan, with the rows of the positives.
        world: this process among all.
        substream: number of the substream that the negatives come from.
        num_substreams: number of substreams of this process.
        target: number of examples that the substream's reader has read before.
        place: where the reader begins if it has not begun yet, or is past the target.
    """

    plan: BatchPlan
    world: World
    substream: int
    num_substreams: int
    target: int
    place: Place | None


class _StreamBatches(Dataset[Any]):
    """Makes batches of plans; each comes with its substream and the place behind it."""

    def __init__(self, stream: NegativeStream, fetch: Fetcher, seed: int) -> None:
        self.stream, self.fetch, self.seed = stream, fetch, seed
        self._reader: StreamReader | None = None

    def __getitem__(self, step: StreamPlan | None) -> tuple[PosNegBatch, int, Place] | None:
        if step is None:
            return None
        plan, world = step.plan, step.world
        reader = self._reader_of(step)
        reader.seek(step.place, step.target)
        own = plan.sizes.num_neg + plan.sizes.num_dual_neg
        if self.stream.split == "deal":
            negatives = self._read(reader, step, own * world.size)
            keep = slice(world.rank, None, world.size)
        else:
            negatives, keep = self._read(reader, step, own), slice(None)
        if self.stream.blocks:
            inputs = join_inputs([self.fetch(plan.rows, plan.step), cut_inputs(join_inputs(negatives), keep)])
        else:
            inputs = collate_with_rows(self.fetch, plan.rows, plan.step, inputs_of_negatives(negatives[keep]))
        batch = PosNegBatch(inputs, torch.from_numpy(plan.index), *plan.sizes, shares=plan.shares)
        return batch, step.substream, reader.place

    def _reader_of(self, step: StreamPlan) -> StreamReader:
        if self._reader is None:
            number = step.world.rank * step.num_substreams + step.substream
            self._reader = StreamReader(self.stream, number, step.world.size * step.num_substreams)
        return self._reader

    def _read(self, reader: StreamReader, step: StreamPlan, count: int) -> list[Any]:
        if self.stream.blocks:  # Blocks are not seeded: that takes as long as reading a large block.
            return reader.take(count)
        number = 0 if self.stream.split == "deal" else reader.which[0]
        with seeded_items(self.seed, step.plan.step) as reseed:
            reseed(-1 - number)  # Positives are seeded by their rows, which are not negative.
            return reader.take(count)


class StreamedLoader(PosNegLoader):
    """Training batches whose negatives come from a stream.

    Args:
        sampler: a :class:`~lightning_tpauc.data.sampler.StreamSampler`.
        fetch: loads rows of the positives' data set.
        position: as in :class:`PosNegLoader`.
        num_workers: as in :class:`PosNegLoader`.
        pin_memory: as in :class:`PosNegLoader`.
        cursor: knows the stream's place.
        seed: seed of the random numbers that the stream draws from the global generators.
        **options: as in :class:`PosNegLoader`.

    Example:
        >>> import numpy as np
        >>> from lightning_tpauc.data.examples import fetcher_for
        >>> from lightning_tpauc.data.sampler import BatchSizes, StreamSampler
        >>> class Noise(torch.utils.data.IterableDataset):
        ...     def __iter__(self):
        ...         while True:
        ...             yield torch.rand(2)
        >>> sampler = StreamSampler(np.arange(6), None, BatchSizes(2, 4))
        >>> cursor = StreamCursor(NegativeStream(Noise()))
        >>> loader = StreamedLoader(sampler, fetcher_for(torch.ones(6, 2)), cursor=cursor)
        >>> [batch.inputs.shape for batch in loader]
        [torch.Size([6, 2]), torch.Size([6, 2]), torch.Size([6, 2])]
    """

    def __init__(
        self,
        sampler: BatchSampler,
        fetch: Fetcher,
        position: Callable[[PosNegLoader], Position] | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        *,
        cursor: StreamCursor,
        seed: int = 0,
        **options: Any,
    ) -> None:
        refuse_nested_workers(cursor.stream, num_workers)
        super().__init__(sampler, fetch, position, num_workers, pin_memory, **options)
        self.cursor = cursor
        self._make = partial(_StreamBatches, cursor.stream, fetch, seed)
        self._source.batches = self._make()
        self._fresh = True

    def _batches(self, step: int, count: int) -> Iterator[PosNegBatch]:
        num_substreams = self.cursor.stream.num_substreams(self._source.num_workers)
        places = self.cursor.begin(step, num_substreams, fresh=self._fresh)
        self._fresh = not self._source.keeps_workers
        for result in self._source.run(self._plans(step, count, places, self.cursor.request)):
            if result is not None:
                batch, substream, place = result
                step += 1
                self.cursor.record(step, substream, place)
                yield batch

    def whole_epoch(self) -> Iterator[PosNegBatch]:
        """See :meth:`PosNegLoader.whole_epoch`. Separate readers read what training reads next, if they can."""
        aside = self._source.aside(self._make())
        places = self.cursor.aside(self._where().step, self.cursor.stream.num_substreams(self._source.num_workers))
        positions = {substream: place.position for substream, place in places.items()}

        def request(substream: int, count: int) -> int:
            positions[substream] += count
            return positions[substream] - count

        for result in aside.run(self._plans(self._where().step, len(self), places, request)):
            if result is not None:
                yield result[0]

    def _plans(self, step: int, count: int, places: Places, request: Any) -> Iterator[StreamPlan | None]:
        num_substreams, readers = len(places), max(1, self._source.num_workers)
        # torch gives plans to the workers in turns. Empty plans keep each substream with its worker.
        yield from [None] * (step % num_substreams)
        world = current_world()
        for k, plan in enumerate(self.batch_plans.plans(step, count)):
            substream = plan.step % num_substreams
            own = plan.sizes.num_neg + plan.sizes.num_dual_neg
            target = request(substream, own * (world.size if self.cursor.stream.split == "deal" else 1))
            yield StreamPlan(plan, world, substream, num_substreams, target, places[substream] if k < readers else None)

    def close(self) -> None:
        """See :meth:`PosNegLoader.close`."""
        super().close()
        self._fresh = True


class ScoredStream:
    """Evaluation batches of the first negatives of a stream, for solving the dual variables.

    All ranks score the same number, so that they make the same number of forward passes. ``example_id`` counts
    ``0 .. num_examples - 1``. A shorter stream is scored once, up to the end of the part that ends first. What training
    reads does not change.

    Args:
        stream: the stream.
        max_negatives: largest number of negatives to score, over all ranks.
        batch_size: examples per batch.
        fetch: the training set's fetcher, which knows how to collate items; ``None`` stacks them.

    Example:
        >>> class Two(torch.utils.data.IterableDataset):
        ...     def __iter__(self):
        ...         return iter([0.5, 2.0])
        >>> loader = ScoredStream(NegativeStream(Two()), 4, batch_size=3)
        >>> [(batch.inputs.tolist(), batch.example_id.tolist()) for batch in loader]
        [([0.5, 2.0], [0, 1])]
    """

    def __init__(
        self, stream: NegativeStream, max_negatives: int | None, batch_size: int, fetch: Fetcher | None = None
    ) -> None:
        self.stream, self.batch_size, self._fetch = stream, batch_size, fetch
        count = stream.num_scored if max_negatives is None else max_negatives
        self._count = count if stream.length is None else min(count, stream.length)
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
        start, size = 0, 1
        while size and start < own:
            inputs, size = self._next(reader, start, min(self.batch_size, own - start), world)
            if size:
                ids = torch.arange(start, start + size) * world.size + world.rank
                yield EvalBatch(inputs, torch.zeros(size, dtype=torch.int64), ids)
            start += size
        self._read = start

    def _next(self, reader: StreamReader, start: int, count: int, world: World) -> tuple[Any, int]:
        """This rank's inputs after its first ``start``, and their number on every rank; 0 at the end of the pass."""
        dealt = world.size if self.stream.split == "deal" else 1
        with seeded_items(0, start) as reseed:
            reseed(-1 - (world.rank if dealt == 1 else 0))
            negatives = reader.take(count * dealt, within_pass=True)
            size = self._count_of(negatives) // dealt
            if size == start == 0:  # fewer examples than ranks
                negatives += reader.take(dealt - self._count_of(negatives))
                size = 1
        if dealt == 1:
            size = least_of_ranks(size)
        if size == 0:
            return None, 0
        keep = slice(world.rank if dealt > 1 else 0, size * dealt, dealt)
        if self.stream.blocks:
            return cut_inputs(join_inputs(negatives), keep), size
        return collate_with_rows(self._fetch, None, start, inputs_of_negatives(negatives[keep])), size

    def _count_of(self, negatives: list[Any]) -> int:
        return sum(map(num_examples, negatives)) if self.stream.blocks else len(negatives)
