"""Loaders that Lightning leaves alone, for training and for evaluation.

They are plain iterables with a length, not :class:`torch.utils.data.DataLoader`. Lightning rebuilds DataLoaders under
DDP, for prediction and for ``overfit_batches``, which would undo the sampling. Worker processes come from a
``DataLoader`` inside. Iteration is lazy: Lightning calls ``iter()`` before it restores a checkpoint and asks for the
first batch afterwards, so the position is read with the first batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import Trainer
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from lightning_tpauc.data.batch import EvalBatch, PosNegBatch
from lightning_tpauc.data.examples import Fetcher
from lightning_tpauc.data.sampler import BatchPlan, BatchSampler, current_world
from lightning_tpauc.functional.pairwise import TaskMasks

Indices = NDArray[np.int64]


class Position(NamedTuple):
    """Where training stands: batches consumed since the beginning, t, and those of them in the current epoch."""

    step: int
    done_in_epoch: int = 0


class PosNegLoader:
    """Joint training batches from global step t on. One iteration is one epoch, or the rest of it.

    Batch t is a pure function of the seed, t and the number of ranks, so a checkpoint holds only t.

    ``position`` returns the position; it is called with this loader when the first batch of an iteration is asked for,
    and without it the batches that were handed out are counted. Further options are those of a ``DataLoader`` about
    workers, which stay alive between iterations unless ``persistent_workers`` is ``False``.
    """

    def __init__(
        self,
        sampler: BatchSampler,
        fetch: Fetcher,
        position: Callable[[PosNegLoader], Position] | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        **options: Any,
    ) -> None:
        self.batch_plans, self.fetch, self.position = sampler, fetch, position
        self._handed_out = Position(0)
        self._source = BatchSource(_TrainBatches(fetch), num_workers, pin_memory, **options)

    def __len__(self) -> int:
        return len(self.batch_plans)

    #: Names of the columns of a table; ``None`` for everything else.
    columns: tuple[str, ...] | None = None

    @property
    def num_positives(self) -> Any:
        """Number of training positives, n+; with several labels, a tuple with the number of each label."""
        return self.batch_plans.num_positives

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """Names of several labels; ``None`` with one."""
        return self.batch_plans.label_names

    @property
    def num_labels(self) -> int | None:
        """Number of labels; ``None`` with one."""
        return None if self.label_names is None else len(self.label_names)

    def __iter__(self) -> Iterator[PosNegBatch]:
        start = self._where()
        length = len(self)
        remaining = max(0, length - start.done_in_epoch)
        for batch in self._batches(start.step, remaining):
            step, done = self._handed_out if self.position is None else start
            start = self._handed_out = Position(step + 1, (done + 1) % length)
            yield batch
        self._handed_out = self._handed_out._replace(done_in_epoch=0)

    def _batches(self, step: int, count: int) -> Iterator[PosNegBatch]:
        """The batches of ``count`` steps."""
        return self._source.run(self.batch_plans.plans(step, count))

    def whole_epoch(self, most: int | None = None) -> Iterator[PosNegBatch]:
        """The batches of one epoch from the current step on, or the first of them. An iteration is not disturbed."""
        count = len(self) if most is None else min(most, len(self))
        yield from self._source.aside().run(self.batch_plans.plans(self._where().step, count))

    def _where(self) -> Position:
        return self._handed_out if self.position is None else self.position(self)

    def state_dict(self) -> dict[str, int]:
        """Position after the last batch that was handed out. Lightning stores it in checkpoints within an epoch."""
        return self._handed_out._asdict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue at a stored position; it counts only without a ``position`` function."""
        self._handed_out = Position(**state)

    def close(self) -> None:
        """Stop the worker processes; the next iteration starts new ones."""
        self._source.close()


class EvalLoader:
    """Evaluation batches. Rank r gets batches r, r + W, r + 2 W, ...

    The content of a batch does not depend on the number of ranks, so scores are the same bit for bit. A rank that would
    get fewer batches repeats one with ``target = example_id = -1``, so that all ranks make as many forward passes.

    ``rows`` ``(n,)`` are the rows of the data set to evaluate; the k-th of them has ``example_id`` k. ``targets`` are 0
    and 1, or -1 where metrics ignore them, ``(n,)``, or ``(n, K)`` with several labels.
    """

    def __init__(
        self,
        rows: Indices,
        targets: NDArray[Any],
        fetch: Fetcher,
        batch_size: int = 1024,
        num_workers: int = 0,
        pin_memory: bool = False,
        **options: Any,
    ) -> None:
        self.rows, self.targets = rows, targets
        #: The user's ids of the examples, array ``(n,)``; ``None`` if there are none.
        self.ids: NDArray[Any] | None = None
        self.batch_size = batch_size
        self._source = BatchSource(_EvalBatches(fetch, rows, targets), num_workers, pin_memory, **options)

    @property
    def num_examples(self) -> int:
        """Examples over all ranks."""
        return len(self.rows)

    def __len__(self) -> int:
        """Batches on each rank."""
        return -(-self._num_batches() // current_world().size)

    def __iter__(self) -> Iterator[EvalBatch]:
        # In a generator, workers start when the first batch is asked for.
        yield from self._source.run(self._plans())

    def _num_batches(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def _plans(self) -> Iterator[_EvalPlan]:
        world = current_world()
        total = self._num_batches()
        for batch in range(world.rank, world.size * len(self), world.size):
            # The last batch, which is the smallest, is repeated.
            start = min(batch, total - 1) * self.batch_size
            yield _EvalPlan(start, min(start + self.batch_size, len(self.rows)), batch >= total)

    def close(self) -> None:
        """Stop the worker processes; the next iteration starts new ones."""
        self._source.close()


class _EvalPlan(NamedTuple):
    start: int
    stop: int
    repeated: bool


class _TrainBatches(Dataset[PosNegBatch]):
    """Makes batches of plans. The "items" of the inner DataLoader are whole batches."""

    def __init__(self, fetch: Fetcher) -> None:
        self.fetch = fetch

    def __getitem__(self, plan: BatchPlan) -> PosNegBatch:
        return batch_of(plan, self.fetch(plan.rows, plan.step))


def batch_of(plan: BatchPlan, inputs: Any) -> PosNegBatch:
    """The batch of a plan, whose inputs were read."""
    masks: TaskMasks | None = None
    if plan.masks is not None:
        pos, neg, dual = plan.masks
        dual_neg = None if dual is None else torch.from_numpy(dual)
        masks = TaskMasks(torch.from_numpy(pos), torch.from_numpy(neg), dual_neg)
    return PosNegBatch(inputs, torch.from_numpy(plan.index), *plan.sizes, shares=plan.shares, masks=masks)


class _EvalBatches(Dataset[EvalBatch]):
    def __init__(self, fetch: Fetcher, rows: Indices, targets: NDArray[Any]) -> None:
        self.fetch, self.rows, self.targets = fetch, rows, targets

    def __getitem__(self, plan: _EvalPlan) -> EvalBatch:
        inputs = self.fetch(np.asarray(self.rows[plan.start : plan.stop], dtype=np.int64), 0)
        ids, target = torch.arange(plan.start, plan.stop), torch.from_numpy(self.targets[plan.start : plan.stop]).long()
        if plan.repeated:
            return EvalBatch(inputs, torch.full_like(target, -1), torch.full_like(ids, -1))
        return EvalBatch(inputs, target, ids)


class BatchSource:
    """Makes batches of plans, in this process or in workers."""

    def __init__(self, batches: Dataset[Any], num_workers: int, pin_memory: bool, **options: Any) -> None:
        self.batches, self.num_workers, self.pin_memory = batches, num_workers, pin_memory
        self.options = {"persistent_workers": True, **options} if num_workers else {}
        self._plans = _Plans()
        self._loader: DataLoader[Any] | None = None

    @property
    def keeps_workers(self) -> bool:
        """Whether the next iteration runs in the same workers, or in this process."""
        return bool(self.options.get("persistent_workers", True))

    def aside(self) -> BatchSource:
        """A second source with workers of its own, for one iteration."""
        options = self.options | {"persistent_workers": False}
        return BatchSource(self.batches, self.num_workers, self.pin_memory, **options)

    def run(self, plans: Iterator[Any]) -> Iterator[Any]:
        """The batches of these plans, in order."""
        if not self.num_workers and not self.pin_memory:
            return map(self.batches.__getitem__, plans)
        self._plans.plans = plans
        if self._loader is None:
            self._loader = DataLoader(
                self.batches,
                batch_size=None,
                sampler=self._plans,
                collate_fn=_unchanged,
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


class _Plans(Iterable[Any]):
    """Sampler of the inner DataLoader: the plans of the next iteration."""

    plans: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self.plans


def _unchanged(batch: Any) -> Any:
    return batch


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
