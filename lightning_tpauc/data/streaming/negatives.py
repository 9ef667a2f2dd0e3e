"""Negatives that are read one after another instead of being indexed."""

from __future__ import annotations

import pickle
from typing import Any, Literal, cast

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from lightning_tpauc.errors import ArgumentError, DataError
from lightning_tpauc.functional.checks import check_choice

__all__ = ("NegativeStream", "as_stream", "is_stateful", "refuse_nested_workers")


class NegativeStream:
    """A stream of negatives, and how it is read; a bare iterable data set stands for one with the defaults.

    Each step reads ``num_neg`` examples and, behind them, ``num_dual_neg`` others, so the two batches are disjoint.
    They are taken in the stream's order: shuffle there if neighbours resemble each other. A stream that ends starts
    again with ``iter(dataset)``, after ``dataset.set_epoch(pass)`` if it has that method.

    Args:
        dataset: yields the inputs of negatives, of the same kind as the positives', or tuples whose last entry is the
            label 0. If it has ``state_dict()`` and ``load_state_dict()`` (or its iterator has), as torchdata's and
            Hugging Face's streams do, a resumed run goes on where this state says: exactly where the stream stood,
            unless the state leaves something out (that of Hugging Face's ``shuffle`` leaves out its buffer). It may
            hold what ``torch.load(weights_only=True)`` reads: numbers, strings, tensors, and lists, tuples and
            dictionaries of these.
        split: how processes and workers share it. ``"deal"``: each reads the whole stream and keeps its examples of
            each step, so a step's negatives depend neither on the number of workers nor, their order aside, of
            processes; reading costs as many times as much. ``"shard"``: each reads its own
            ``dataset.shard(num_shards=..., index=...)``. ``"own"``: the data set divides itself by the rank and
            :func:`torch.utils.data.get_worker_info`, as WebDataset and litdata do; with the other two it does not see
            that it is in a worker.
        blocks: whether it yields blocks of examples (tensors, arrays, or tuples and mappings of these, with the
            examples along the first axis), which is quicker than one by one. A ``DataLoader`` does, unless its
            ``batch_size`` is ``None``, and needs no word of it. ``len(dataset)``, if there is one, is the number of
            examples all the same.
        resume: what a resumed run does if the data set has no ``state_dict``: ``"restart"`` begins with its first
            example, ``"skip"`` reads past as many as were consumed. A warning says that either happens.
        num_scored: how many negatives are scored for the exact start of the dual variables, where
            ``StageCallback(max_negatives=...)`` does not say.

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
        #: The state before anything was read; pickled, since data sets may change what they return.
        self.initial = _initial_state(self.dataset) if is_stateful(dataset) else None
        #: The reader that iterates now: a data set that keeps its position in itself serves one at a time.
        self.owner: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # a reader holds an iterator, which can't travel to a worker; that there was one still matters there
        return self.__dict__ | {"owner": self.owner and "in another process"}

    def num_substreams(self, num_workers: int) -> int:
        """Number of parts that one process reads: one, or one for each of its workers."""
        return 1 if self.split == "deal" else max(1, num_workers)

    def part(self, index: int, count: int) -> Any:
        """The data set that one of ``count`` readers iterates."""
        return self.dataset.shard(num_shards=count, index=index) if self.split == "shard" else self.dataset

    @property
    def length(self) -> int | None:
        """Number of examples of one pass, if the data set says so."""
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
    """Give a bare data set the default way of reading.

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
    """Examples in all batches of a loader, as far as it makes them itself."""
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
    """Whether a data set or iterator can be asked where it stands and be put there.

    Example:
        >>> is_stateful(iter([]))
        False
    """
    return hasattr(source, "state_dict") and hasattr(source, "load_state_dict")


def _initial_state(dataset: Any) -> bytes:
    state = pickle.dumps(dataset.state_dict())
    # torchdata's loaders make their iterator when they are asked for the state, return it at the next `iter`, and
    # ignore a state that is loaded in between: this is that `iter`
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
