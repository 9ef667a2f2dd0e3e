"""Reads a stream of negatives in order and knows its place; runs in the training process or in a worker."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from torch.utils.data import _utils

from lightning_tpauc.data.core.tree_utils import as_tensors, cut_inputs, num_examples
from lightning_tpauc.data.streaming.negatives import NegativeStream, is_stateful
from lightning_tpauc.errors import DataError

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
