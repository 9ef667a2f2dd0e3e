"""The stream of negatives as users give it: how it is shared among processes, and how it resumes."""

from __future__ import annotations

import pickle
from typing import Any, Literal, cast

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from lightning_tpauc.errors import ArgumentError, DataError
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
        num_scored: number of negatives that are scored for the exact start of the dual variables, unless
            ``StageCallback(max_negatives=...)`` sets it.

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
