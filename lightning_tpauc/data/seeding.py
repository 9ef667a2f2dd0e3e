"""Randomness that depends only on the seed: permutations entry by entry, and random numbers in data sets.

Sampling without replacement usually stores a shuffled copy of the index; with 10^9 examples that is 8 GB, and resuming
means replaying every shuffle. Here entry k of a permutation is a pure function of ``(seed, purpose, pass, k)``. Nothing
is stored, and any step of any pass is computed directly. Only wrapping 64-bit integer arithmetic is used, so the order
is the same on every platform and with every version of numpy.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import is_whole

# Up to this size, a pass is sorted by random keys. That is exactly uniform; a Feistel network on so few values is not.
_SORTED_UP_TO = 4096
# Each half is changed three times. An entry takes about 50 ns.
_ROUNDS = 6
_WORD = (1 << 64) - 1
# Odd constants of the splitmix64 generator.
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)

Words = NDArray[np.uint64]
Indices = NDArray[np.int64]


class Purpose(IntEnum):
    """What random numbers of one seed are drawn for; purposes are independent of each other.

    The values are part of the sampling order: never change one, or a resumed run draws other examples.
    """

    POSITIVES = 1
    NEGATIVES = 2
    DUAL_NEGATIVES = 3
    ALL_EXAMPLES = 4
    AUGMENTATION = 5
    SCORING = 6
    REMOVAL = 7
    TASKS = 9
    TASK_POSITIVES = 10


def permute(slots: Indices, passes: Indices, n: int, *, seed: int = 0, purpose: int = 0) -> Indices:
    """Entry ``slots`` of the permutations of ``range(n)`` that belong to ``passes``.

    Args:
        slots: int64 array, positions inside a pass, in ``0 .. n - 1``.
        passes: int64 array that broadcasts against ``slots``: the number of the permutation, ``>= 0``.
        n: number of elements, in ``1 .. 2**62``.
        seed: any integer, of which the last 64 bits count. Other seeds give unrelated permutations.
        purpose: a :class:`Purpose`, or any integer.

    Returns:
        int64 array of the broadcast shape, with values in ``0 .. n - 1``. For a fixed pass, ``slots -> values`` is a
        bijection of ``range(n)``.

    Raises:
        ArgumentError: if ``n`` is out of range.

    Example:
        >>> import numpy as np
        >>> np.sort(permute(np.arange(5), np.array(0), 5)).tolist()
        [0, 1, 2, 3, 4]
        >>> permute(np.array([123_456_789]), np.array([7]), 10**9, seed=1).item() < 10**9
        True
    """
    if not 1 <= n <= 1 << 62:
        msg = f"Expected `n` to be in 1 .. 2**62, but got {n}."
        raise ArgumentError(msg)
    slots, passes = np.broadcast_arrays(slots, passes)
    shape = slots.shape
    distinct, group = np.unique(passes, return_inverse=True)
    keys = random_keys(seed, purpose, distinct)
    if n <= _SORTED_UP_TO:
        # Independent 64-bit keys are sorted. Equal keys, of probability n^2 / 2^65, keep their order.
        tables = np.argsort(_mix(keys[:, None] + _words(np.arange(n)) * np.uint64(_GOLDEN)), axis=1, kind="stable")
        return tables[group.reshape(shape), slots]
    walker = _Feistel(n, keys)
    return walker(_words(slots.ravel()), group.ravel()).view(np.int64).reshape(shape)


def random_keys(seed: int, purpose: int, passes: Indices) -> Words:
    """64-bit keys of shape ``passes.shape``, hashed from (seed, purpose, pass).

    Example:
        >>> import numpy as np
        >>> random_keys(0, 1, np.arange(3)).dtype
        dtype('uint64')
    """
    key = np.array([int(seed) & _WORD], dtype=np.uint64)
    key = _mix(key + np.uint64(_GOLDEN)) + np.array([int(purpose) * _GOLDEN & _WORD], dtype=np.uint64)
    return _mix(_mix(key) + _words(np.asarray(passes)) * np.uint64(_GOLDEN))


class _Feistel:
    """Feistel network on Z_a x Z_b, where a b is slightly above n. A value of n or more is sent through it again.

    With a = ceil(sqrt(n)) and b = ceil(n / a), fewer than a of the a b values lie outside ``range(n)``. Less than one
    entry in sqrt(n) is sent through it again.

    Args:
        n: number of elements.
        keys: uint64 array ``(P,)``, one key per permutation.
    """

    def __init__(self, n: int, keys: Words) -> None:
        self.n = np.uint64(n)
        high = math.isqrt(n - 1) + 1
        self.sides = np.uint64(high), np.uint64(-(-n // high))
        steps = np.arange(1, _ROUNDS + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
        self.round_keys = _mix(keys[:, None] + steps)

    def __call__(self, x: Words, group: Indices) -> Words:
        x = self._once(x, group)
        outside = np.flatnonzero(x >= self.n)
        while outside.size:
            x[outside] = self._once(x[outside], group[outside])
            outside = outside[x[outside] >= self.n]
        return x

    def _once(self, x: Words, group: Indices) -> Words:
        low_side = self.sides[1]
        high: Words = x // low_side
        low: Words = x - high * low_side
        halves = high, low
        for i in range(_ROUNDS):
            changed, side = halves[i % 2], self.sides[i % 2]
            # The key of a single permutation is broadcast. Of several permutations, each entry takes its own.
            keys = self.round_keys[:, i] if len(self.round_keys) == 1 else self.round_keys[group, i]
            changed += _reduced_hash(halves[1 - i % 2], keys, side)
            changed -= (changed >= side) * side
        high *= low_side
        high += low
        return high


def _reduced_hash(x: Words, keys: Words, side: np.uint64) -> Words:
    """Hash of ``x`` under ``keys``, uniform on ``range(side)`` up to side / 2^32."""
    word: Words = x * _MIX_A
    word += keys
    word ^= word >> np.uint64(32)
    word *= _MIX_B
    word >>= np.uint64(32)
    word *= side
    word >>= np.uint64(32)
    return word


def _mix(x: Words) -> Words:
    """Finaliser of splitmix64, a bijection of 64-bit words that spreads every input bit."""
    x = x ^ (x >> np.uint64(30))
    x *= _MIX_A
    x ^= x >> np.uint64(27)
    x *= _MIX_B
    x ^= x >> np.uint64(31)
    return x


def _words(x: Indices) -> Words:
    return x.astype(np.uint64)


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
