"""What a data module's arguments mean for training: which rows train, and which sampler draws them."""

from __future__ import annotations

from typing import Any, NamedTuple

from lightning_tpauc.data.core.datasets import TrainingPart, labels_of_positives
from lightning_tpauc.data.core.sampler import SAMPLERS, BatchSampler, BatchSizes
from lightning_tpauc.data.core.splits import stratified_fold, stratified_holdout
from lightning_tpauc.data.core.targets import find_targets
from lightning_tpauc.data.streaming.loader import StreamSampler
from lightning_tpauc.data.streaming.negatives import NegativeStream
from lightning_tpauc.errors import ArgumentError

__all__ = ("Split", "make_sampler", "make_training_part")


class Split(NamedTuple):
    """Which part of the training set validates instead.

    Attributes:
        val_fraction: a share of it.
        num_folds: number of folds.
        fold: the fold.
        seed: seed of the split.
    """

    val_fraction: float | None = None
    num_folds: int | None = None
    fold: int | None = None
    seed: int = 0


def make_training_part(dataset: Any, targets: Any, split: Split, *, positives_only: bool = False) -> TrainingPart:
    """Labels of the training set, and which of its rows train.

    Args:
        dataset: map-style data set.
        targets: as in :func:`~lightning_tpauc.data.core.targets.find_targets`.
        split: what validates.
        positives_only: whether the negatives are a stream.

    Raises:
        ArgumentError: if something is to be split off from positives alone.

    Example:
        >>> import torch
        >>> part = make_training_part(torch.zeros(4, 2), [0, 1, 0, 1], Split())
        >>> part.by_class
        (array([1, 3]), array([0, 2]))
    """
    if positives_only:
        named = "val_fraction" if split.val_fraction is not None else "num_folds"
        if getattr(split, named) is not None:
            msg = (
                f"`{named}={getattr(split, named)}` can't split a stream of `negatives`. Pass a `val_dataset` with "
                "both classes instead."
            )
            raise ArgumentError(msg)
        return TrainingPart(labels_of_positives(dataset, targets))
    labels = find_targets(dataset, targets)
    if split.val_fraction is not None:
        return TrainingPart(labels, *stratified_holdout(labels, split.val_fraction, split.seed))
    if split.num_folds is not None and split.fold is not None:
        return TrainingPart(labels, *stratified_fold(labels, split.num_folds, split.fold, split.seed))
    return TrainingPart(labels)


def make_sampler(
    kind: str,
    part: TrainingPart,
    stream: NegativeStream | None,
    sizes: BatchSizes,
    seed: int,
    epoch_steps: int | None = None,
) -> BatchSampler:
    """The sampler that draws the training part.

    Args:
        kind: ``"pos_neg"``, ``"uniform"`` or ``"full"``.
        part: the training part.
        stream: the stream of negatives, if they are one.
        sizes: examples per step on each rank.
        seed: seed of the order.
        epoch_steps: steps of an epoch; ``None`` leaves it to the sampler.

    Raises:
        ArgumentError: if the kind needs negatives that can be indexed.

    Example:
        >>> import numpy as np
        >>> part = TrainingPart(np.array([0, 1, 0, 0, 1, 0], dtype=np.int8))
        >>> len(make_sampler("pos_neg", part, None, BatchSizes(1, 2), seed=0))
        2
    """
    sampler: BatchSampler
    if stream is None:
        sampler = SAMPLERS[kind](*part.by_class, sizes, seed)
    elif kind == "pos_neg":
        sampler = StreamSampler(part.by_class[0], stream.length, sizes, seed)
    else:
        reason = {
            "uniform": "draws from positives and negatives together; set `sampling='pos_neg'` to draw them apart,",
            "full": "takes all negatives in every step; train with another algorithm, such as STACO,",
        }
        msg = (
            f"`sampling={kind!r}` {reason[kind]} or put the negatives into `train_dataset`: `negatives` is a stream, "
            "which can't be indexed."
        )
        raise ArgumentError(msg)
    sampler.epoch_steps = epoch_steps
    return sampler
