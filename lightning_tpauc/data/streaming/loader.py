"""Training batches of indexed positives and streamed negatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset

from lightning_tpauc.data.core.batch import EvalBatch, PosNegBatch
from lightning_tpauc.data.core.fetch import Fetcher, collate_with_rows
from lightning_tpauc.data.core.loader import Position, PosNegLoader
from lightning_tpauc.data.core.sampler import BatchPlan, BatchSampler, World, current_world, least_of_ranks
from lightning_tpauc.data.core.seeding import seeded_items
from lightning_tpauc.data.core.tree_utils import cut_inputs, join_inputs, num_examples
from lightning_tpauc.data.streaming.cursor import Places, StreamCursor
from lightning_tpauc.data.streaming.negatives import NegativeStream, refuse_nested_workers
from lightning_tpauc.data.streaming.reader import Place, StreamReader, inputs_of_negatives


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
        sampler: a :class:`~lightning_tpauc.data.core.sampler.StreamSampler`.
        fetch: loads rows of the positives' data set.
        position: as in :class:`PosNegLoader`.
        num_workers: as in :class:`PosNegLoader`.
        pin_memory: as in :class:`PosNegLoader`.
        cursor: knows the stream's place.
        seed: seed of the random numbers that the stream draws from the global generators.
        **options: as in :class:`PosNegLoader`.

    Example:
        >>> import numpy as np
        >>> from lightning_tpauc.data.core.fetch import fetcher_for
        >>> from lightning_tpauc.data.core.sampler import BatchSizes, StreamSampler
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
