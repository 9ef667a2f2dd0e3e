"""Random numbers inside data sets that depend on the example and the step, and on nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from lightning_tpauc.data.permutation import stream_key

__all__ = ("seeded_items",)

# The stream of augmentation seeds; see the samplers' streams.
_AUGMENTATION = 5


@contextmanager
def seeded_items(seed: int, step: int) -> Iterator[Callable[[int], None]]:
    """Give the global generators a seed per item, and restore their state afterwards.

    An augmentation that draws from ``random``, ``numpy.random`` or ``torch`` (on the CPU) then depends on (seed, step,
    row) only: not on what ran before, on the number of workers or ranks, or on where training was resumed.

    Args:
        seed: the run's seed.
        step: global step t.

    Yields:
        A function to be called with the row of each item before the item is read.

    Example:
        >>> with seeded_items(seed=0, step=3) as reseed:
        ...     reseed(7)
        ...     first = torch.rand(2)
        ...     reseed(7)
        ...     print(torch.equal(first, torch.rand(2)))
        True
    """
    # only the default CPU generator: torch.manual_seed would also queue seeds for every GPU
    generator = torch.default_generator
    step_key = int(stream_key(seed, _AUGMENTATION, np.array([step]))[0])
    states = random.getstate(), np.random.get_state(), generator.get_state()

    def reseed(row: int) -> None:
        word = int(stream_key(step_key, _AUGMENTATION, np.array([row]))[0])
        random.seed(word)
        np.random.seed(word & 0xFFFFFFFF)
        generator.manual_seed(word)

    try:
        yield reseed
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        generator.set_state(states[2])
