"""Random numbers in data sets that depend only on the seed, the step and the example."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info

from lightning_tpauc.data.core.permutation import Purpose, random_keys
from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import is_whole

__all__ = ("as_seed", "say_what_seeds", "seeded_items")


def as_seed(seed: Any, name: str, bits: int = 64) -> int:
    """A seed as a Python integer.

    Args:
        seed: a whole number in ``0 .. 2**bits - 1`` of Python or numpy.
        name: name of the argument in messages.
        bits: number of bits of the largest seed.

    Raises:
        ArgumentError: if it is something else. ``None`` is refused, since other processes and later runs would not know
            the seed that is drawn.

    Example:
        >>> as_seed(np.uint8(3), "seed")
        3
    """
    if not is_whole(seed) or not 0 <= int(seed) < 1 << bits:
        msg = f"Expected `{name}` to be a whole number in 0 .. 2**{bits} - 1, but got {seed!r}."
        raise ArgumentError(msg)
    return int(seed)


def say_what_seeds(seed: int, split_seed: int) -> None:
    """Tell users of Lightning's ``seed_everything`` that it changes neither the order nor the split.

    A resumed run and a later test must see the same order and split, whether or not their scripts call it.
    """
    everything = os.environ.get("PL_GLOBAL_SEED", "0")
    if everything != "0" and (seed, split_seed) == (0, 0):
        rank_zero_info(
            f"seed_everything({everything}) sets initial weights, but the order of the batches and the split follow "
            f"`seed=0` and `split_seed=0` of the data module. Pass other values there for runs that are to differ in "
            "these, too."
        )


@contextmanager
def seeded_items(seed: int, step: int) -> Iterator[Callable[[int], None]]:
    """Seed the global generators for each item, and restore their state afterwards.

    An augmentation that draws from ``random``, ``numpy.random`` or ``torch`` (on the CPU) then depends on (seed, step,
    row) only. It does not depend on earlier draws, on the number of workers or ranks, or on a resume.

    Args:
        seed: the run's seed.
        step: global step t.

    Yields:
        A function. Call it with the row of each item before you read the item.

    Example:
        >>> with seeded_items(seed=0, step=3) as reseed:
        ...     reseed(7)
        ...     first = torch.rand(2)
        ...     reseed(7)
        ...     print(torch.equal(first, torch.rand(2)))
        True
    """
    # Only the default CPU generator is seeded. torch.manual_seed would also queue seeds for every GPU.
    generator = torch.default_generator
    step_key = int(random_keys(seed, Purpose.AUGMENTATION, np.array([step]))[0])
    states = random.getstate(), np.random.get_state(), generator.get_state()

    def reseed(row: int) -> None:
        word = int(random_keys(step_key, Purpose.AUGMENTATION, np.array([row]))[0])
        random.seed(word)
        np.random.seed(word & 0xFFFFFFFF)
        generator.manual_seed(word)

    try:
        yield reseed
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        generator.set_state(states[2])
