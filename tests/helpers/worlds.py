"""Pretends to be one of several ranks, without processes, and to have a training set."""

from contextlib import contextmanager

import numpy as np
import pytest

from lightning_tpauc.data import sampler
from lightning_tpauc.data.parts import TrainingPart


@contextmanager
def rank_of(rank, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler, "rank", lambda: rank)
        patch.setattr(sampler, "world_size", lambda: size)
        yield


def training_of(labels, rows=None, weights=None):
    """The part of a training set that trains: all rows, unless others are given."""
    labels = np.asarray(labels, dtype=np.int8)
    names = None if labels.ndim == 1 else tuple(f"label {k}" for k in range(labels.shape[1]))
    rows = np.arange(len(labels)) if rows is None else rows
    return TrainingPart(labels, {"train": rows}, names, weights)
