"""Loaders that Lightning leaves alone, for training and for evaluation.

They are plain iterables with a length, not :class:`torch.utils.data.DataLoader`. Lightning rebuilds DataLoaders under
DDP, for prediction and for ``overfit_batches``, which would undo the sampling. Worker processes come from a
``DataLoader`` inside. Iteration is lazy: Lightning calls ``iter()`` before it restores a checkpoint and asks for the
first batch afterwards, so the position is read with the first batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import Trainer
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from lightning_tpauc.data.batch import EvalBatch, PosNegBatch
from lightning_tpauc.data.examples import Fetcher
from lightning_tpauc.data.sampler import BatchPlan, BatchSampler, current_world
from lightning_tpauc.data.seeding import Indices
from lightning_tpauc.functional.pairwise import TaskMasks


class Position(NamedTuple):
    """Where training stands: batches consumed since the beginning, t, and those of them in the current epoch."""

    step: int
    done_in_epoch: int = 0


class PosNegLoader:
    """Joint training batches from global step t on. One iteration is one epoch, or the rest of it.

    Batch t is a pure function of the seed, t and the number of ranks, so a checkpoint holds only t.

    ``position`` returns the position; it is called with this loader when the first batch of an iteration is asked for.
    Without it the batches that were handed out are counted, and every iteration is a whole epoch. ``workers`` are
    options of a ``DataLoader`` about workers, which stay alive between iterations unless ``persistent_workers`` is
    ``False``.
    """

    #: Names of the columns of a table; ``None`` for everything else.
    columns: tuple[str, ...] | None = None

    def __init__(
        self,
        sampler: BatchSampler,
        fetch: Fetcher,
        position: Callable[[PosNegLoader], Position] | None = None,
        **workers: Any,
    ) -> None:
        self.batch_plans, self.fetch, self.position = sampler, fetch, position
        #: Number of training positives, n+, and names of the labels; with several, the numbers of each, else ``None``.
        self.num_positives, self.label_names = sampler.num_positives, sampler.label_names
        self._step = 0
        self._source = BatchSource(self._maker(), **workers)

    def _maker(self) -> Callable[[Any], Any]:
        """What makes a batch of a plan."""
        return partial(_training_batch, self.fetch)

    def __len__(self) -> int:
        return len(self.batch_plans)

    def __iter__(self) -> Iterator[PosNegBatch]:
        step, done = self._where()
        for batch in self._batches(step, max(0, len(self) - done)):
            step = self._step = step + 1
            yield batch

    def _batches(self, step: int, count: int) -> Iterator[PosNegBatch]:
        """The batches of ``count`` steps."""
        return self._source.run(self.batch_plans.plans(step, count))

    def next_batches(self, count: int) -> Iterator[PosNegBatch]:
        """The batches of the next ``count`` steps, at most an epoch's. An iteration is not disturbed."""
        yield from self._source.aside().run(self.batch_plans.plans(self._where().step, min(count, len(self))))

    def _where(self) -> Position:
        return Position(self._step) if self.position is None else self.position(self)

    def close(self) -> None:
        """Stop the worker processes; the next iteration starts new ones."""
        self._source.close()


def _training_batch(fetch: Fetcher, plan: BatchPlan) -> PosNegBatch:
    return batch_of(plan, fetch(plan.rows, plan.step))


def batch_of(plan: BatchPlan, inputs: Any) -> PosNegBatch:
    """The batch of a plan, whose inputs were read."""
    sizes = plan.sizes
    masks: TaskMasks | None = None
    if plan.masks is not None:
        pos, neg, dual = (None if mask is None else torch.from_numpy(mask) for mask in plan.masks)
        masks = TaskMasks(pos, neg, dual)  # type: ignore[arg-type]  # the first two are there
    is_uniform = masks is not None and len(plan.rows) == sizes.num_pos == sizes.num_neg
    return PosNegBatch(inputs, torch.from_numpy(plan.index), *sizes, plan.shares, masks, is_uniform)


class EvalLoader:
    """Evaluation batches. Rank r gets batches r, r + W, r + 2 W, ...

    The content of a batch does not depend on the number of ranks, so scores are the same bit for bit. A rank that would
    get fewer batches repeats one with ``target = example_id = -1``, so that all ranks make as many forward passes.

    ``rows`` ``(n,)`` are the rows of the data set to evaluate; the k-th of them has ``example_id`` k. ``targets`` are 0
    and 1, or -1 where metrics ignore them, ``(n,)``, or ``(n, K)`` with several labels.
    """

    #: The user's ids of the examples, array ``(n,)``; ``None`` if there are none.
    ids: NDArray[Any] | None = None
    #: The numbers of the groups that the examples belong to, int64 ``(n,)``; ``None`` if there are none.
    groups: Indices | None = None

    def __init__(
        self, rows: Indices, targets: NDArray[Any], fetch: Fetcher, batch_size: int = 1024, **workers: Any
    ) -> None:
        self.rows, self.targets, self.batch_size = rows, targets, batch_size
        #: Examples and batches over all ranks.
        self.num_examples, self._total = len(rows), -(-len(rows) // batch_size)
        self._source = BatchSource(partial(_evaluation_batch, fetch, rows, targets, batch_size), **workers)

    def __len__(self) -> int:
        """Batches on each rank."""
        return -(-self._total // current_world().size)

    def __iter__(self) -> Iterator[EvalBatch]:
        # In a generator, workers start when the first batch is asked for.
        rank, size = current_world()
        yield from self._source.run(iter(range(rank, size * len(self), size)))

    def close(self) -> None:
        """Stop the worker processes; the next iteration starts new ones."""
        self._source.close()


def _evaluation_batch(fetch: Fetcher, rows: Indices, targets: NDArray[Any], batch_size: int, number: int) -> EvalBatch:
    """Batch ``number``; behind the last one, that is repeated, since it is the smallest."""
    start = min(number, (len(rows) - 1) // batch_size) * batch_size
    target = torch.from_numpy(targets[start : start + batch_size]).long()
    ids = torch.arange(start, start + len(target))
    inputs = fetch(np.asarray(rows[start : start + batch_size], dtype=np.int64), 0)
    if number * batch_size >= len(rows):
        return EvalBatch(inputs, torch.full_like(target, -1), torch.full_like(ids, -1))
    return EvalBatch(inputs, target, ids)


class BatchSource:
    """Makes batches of plans, in this process or in workers."""

    def __init__(
        self, make: Callable[[Any], Any], num_workers: int = 0, pin_memory: bool = False, **options: Any
    ) -> None:
        self.make, self.num_workers, self.pin_memory = make, num_workers, pin_memory
        self.options = {"persistent_workers": True, **options} if num_workers else {}
        self._plans: Iterator[Any] = iter(())
        self._loader: DataLoader[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        """The plans of the next iteration: this is the sampler of the inner DataLoader."""
        return self._plans

    def aside(self) -> BatchSource:
        """A second source with workers of its own, for one iteration."""
        options = self.options | {"persistent_workers": False}
        return BatchSource(self.make, self.num_workers, self.pin_memory, **options)

    def run(self, plans: Iterator[Any]) -> Iterator[Any]:
        """The batches of these plans, in order."""
        if not self.num_workers and not self.pin_memory:
            return map(self.make, plans)
        self._plans = plans
        if self._loader is None:
            self._loader = DataLoader(
                _Plans(),
                batch_size=None,
                sampler=self,
                collate_fn=self.make,
                num_workers=self.num_workers,
                pin_memory=self.pin_memory,
                # iter() draws a seed. A generator of its own keeps that from changing the global one.
                generator=torch.Generator().manual_seed(0),
                **self.options,
            )
        return iter(self._loader)

    def close(self) -> None:
        """Stop the worker processes.

        An exception leaves the iterator in a cycle of references. When the garbage collector finds it, torch can't tell
        the workers to stop any more and waits five seconds for each.
        """
        iterator: Any = getattr(self._loader, "_iterator", None)
        self._loader = None
        if hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()


class _Plans(Dataset[Any]):
    """The "items" of the inner DataLoader are plans, of which ``collate_fn`` makes batches."""

    def __getitem__(self, plan: Any) -> Any:
        return plan


def training_position(trainer: Trainer, loader: PosNegLoader) -> Position:
    """Where a Trainer's fit stands when the first batch of an epoch is asked for.

    Only the fit loop's own loader can be in the middle of an epoch; any other one yields a whole epoch.

    The step is the ``batches_seen`` of the module's ``training_state``. For modules without it, the step follows from
    the fit loop's counters; that is right if all epochs have the same number of batches. With ``overfit_batches``,
    every epoch takes the same batches.
    """
    loop = trainer.fit_loop
    # The counters keep their last values after fit.
    ready = loop.epoch_loop.batch_progress.current.ready if trainer.training else 0
    combined = loop._combined_loader
    done = ready if combined is not None and any(loader is other for other in combined.flattened) else 0
    if trainer.overfit_batches > 0:  # type: ignore[attr-defined]  # Trainer sets it at run time
        return Position(done, done)
    seen = getattr(getattr(trainer.lightning_module, "training_state", None), "batches_seen", None)
    if isinstance(seen, int):
        return Position(seen, done)
    epochs = loop.epoch_progress.current.completed
    # Lightning counts infinitely many batches before the first epoch, if it does not know their number yet.
    return Position((epochs * int(trainer.num_training_batches) if epochs else 0) + ready, done)
