"""Randomness that depends only on the seed: permutations entry by entry, and random numbers in data sets.

Sampling without replacement usually stores a shuffled copy of the index; with 10^9 examples that is 8 GB, and resuming
means replaying every shuffle. Here entry k of a permutation is a pure function of ``(seed, purpose, pass, k)``. Nothing
is stored, and any step of any pass is computed directly. Only wrapping 64-bit integer arithmetic is used, so the order
is the same on every platform and with every version of numpy.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
import torch
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
_MIX_A = 0xBF58476D1CE4E5B9
_MIX_B = 0x94D049BB133111EB

Words = NDArray[np.uint64]
Indices = NDArray[np.int64]
T = TypeVar("T")


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
    LABELS = 9
    LABEL_POSITIVES = 10


def permute(slots: Indices, passes: Indices, n: int, *, seed: int = 0, purpose: int = 0) -> Indices:
    """Entry ``slots`` of the permutations of ``range(n)`` that belong to ``passes``, int64 of the broadcast shape.

    ``n`` is at most ``2**62``. For a fixed pass, ``slots -> values`` is a bijection of ``range(n)``. Other seeds (the
    last 64 bits count), purposes and passes give unrelated permutations.
    """
    slots, passes = np.broadcast_arrays(slots, passes)
    shape = slots.shape
    distinct, group = np.unique(passes, return_inverse=True)
    keys = random_keys(seed, purpose, distinct)
    if n <= _SORTED_UP_TO:
        # Independent 64-bit keys are sorted. Equal keys, of probability n^2 / 2^65, keep their order.
        entries = np.arange(n, dtype=np.uint64) * np.uint64(_GOLDEN)
        return np.argsort(_mix(keys[:, None] + entries), axis=1, kind="stable")[group.reshape(shape), slots]
    # A Feistel network on Z_a x Z_b, where a = ceil(sqrt(n)) and b = ceil(n / a), so that fewer than a of the a b
    # values lie outside of range(n). These, less than one in sqrt(n), are sent through it again.
    high = math.isqrt(n - 1) + 1
    sides = np.uint64(high), np.uint64(-(-n // high))
    round_keys = _mix(keys[:, None] + np.arange(1, _ROUNDS + 1, dtype=np.uint64) * np.uint64(_GOLDEN))
    which = group.ravel()
    values = _network(slots.ravel().astype(np.uint64), which, round_keys, sides)
    outside = np.flatnonzero(values >= n)
    while outside.size:
        values[outside] = _network(values[outside], which[outside], round_keys, sides)
        outside = outside[values[outside] >= n]
    return values.view(np.int64).reshape(shape)


def _network(x: Words, which: Indices, round_keys: Words, sides: tuple[np.uint64, np.uint64]) -> Words:
    """One pass of the values through the network, each with the round keys of its own permutation."""
    high: Words = x // sides[1]
    low: Words = x - high * sides[1]
    halves = high, low
    for i in range(_ROUNDS):
        changed, side = halves[i % 2], sides[i % 2]
        # The key of a single permutation is broadcast. Of several permutations, each entry takes its own.
        keys = round_keys[:, i] if len(round_keys) == 1 else round_keys[which, i]
        changed += _reduced_hash(halves[1 - i % 2], keys, side)
        changed -= (changed >= side) * side
    return high * sides[1] + low


def _reduced_hash(x: Words, keys: Words, side: np.uint64) -> Words:
    """Hash of ``x`` under ``keys``, uniform on ``range(side)`` up to side / 2^32."""
    half = np.uint64(32)
    word: Words = x * np.uint64(_MIX_A) + keys
    word ^= word >> half
    word = (word * np.uint64(_MIX_B) >> half) * side
    return word >> half


def random_keys(seed: int, purpose: int, passes: Indices) -> Words:
    """64-bit keys of shape ``passes.shape``, hashed from (seed, purpose, pass)."""
    return _mix(np.uint64(_key_of(seed, purpose)) + passes.astype(np.uint64) * np.uint64(_GOLDEN))


def _key_of(seed: int, purpose: int) -> int:
    return int(_mix(_mix(int(seed) + _GOLDEN) + int(purpose) * _GOLDEN))


def _mix(x: Any) -> Any:
    """Finaliser of splitmix64, a bijection of 64-bit words that spreads every input bit; of an integer, modulo 2^64."""
    x = x & _WORD
    x = (x ^ (x >> 30)) * _MIX_A & _WORD
    x = (x ^ (x >> 27)) * _MIX_B & _WORD
    return x ^ (x >> 31)


def as_seed(seed: Any, name: str, bits: int = 64) -> int:
    """A seed as a Python integer. ``None`` is refused: other processes and later runs would not know what is drawn."""
    if not is_whole(seed) or not 0 <= int(seed) < 1 << bits:
        raise ArgumentError(f"Expected `{name}` to be a whole number in 0 .. 2**{bits} - 1, but got {seed!r}.")
    return int(seed)


# Only the default CPU generator of torch is seeded. torch.manual_seed would also queue seeds for every GPU.
_TORCH = torch.default_generator
#: How to read, restore and seed each of the global generators that augmentations draw from.
_GENERATORS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[int], Any]]] = {
    "random": (random.getstate, random.setstate, random.seed),
    "numpy": (np.random.get_state, np.random.set_state, lambda word: np.random.seed(word & 0xFFFFFFFF)),
    "torch": (_TORCH.get_state, _TORCH.set_state, _TORCH.manual_seed),
}


def _states() -> dict[str, Any]:
    return {name: get() for name, (get, _, _) in _GENERATORS.items()}


def _restore(states: dict[str, Any]) -> set[str]:
    """Restore the generators that have moved since; their names."""
    moved = {name for name, (get, _, _) in _GENERATORS.items() if not _same(states[name], get())}
    for name in moved:
        _GENERATORS[name][1](states[name])
    return moved


def _same(one: Any, other: Any) -> bool:
    """Whether two states of a generator are equal: tensors, or tuples of numbers and arrays."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in zip(one, other, strict=True))


def _seeder(seed: int, step: int, names: Iterable[str]) -> Callable[[int], None]:
    """What seeds the global generators of these names for the item of a row."""
    seeds = [_GENERATORS[name][2] for name in names]
    key = _key_of(_mix(_key_of(seed, Purpose.AUGMENTATION) + step * _GOLDEN), Purpose.AUGMENTATION)

    def reseed(row: int) -> None:
        word = _mix(key + row * _GOLDEN)
        for seed_one in seeds:
            seed_one(word)

    return reseed


@contextmanager
def seeded_items(seed: int, step: int) -> Iterator[Callable[[int], None]]:
    """Seed the global generators for each item, and restore their states afterwards.

    An augmentation that draws from ``random``, ``numpy.random`` or ``torch`` (on the CPU) then depends on (seed, step,
    row) only. It does not depend on earlier draws, on the number of workers or ranks, or on a resume. What is yielded
    is to be called with the row of each item before the item is read.
    """
    states = _states()
    try:
        yield _seeder(seed, step, _GENERATORS)
    finally:
        _restore(states)


class ItemReader:
    """Reads the items of a batch with random numbers as in :func:`seeded_items`, and spares the seeding where it can.

    Seeding a generator takes longer than reading a row of a table. So only those are seeded from which an item has
    drawn. If another one has moved during a batch, the batch is read again, and from then on it is seeded as well.
    A draw that leaves no trace, as within ``torch.random.fork_rng``, goes unnoticed.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._drawn: set[str] = set()

    def read(self, get: Callable[[int], T], rows: list[int], step: int) -> list[T]:
        """``get(row)`` of each row, as it is in this step."""
        items, reseed, states = list[T](), _seeder(self.seed, step, self._drawn), _states()
        try:
            for row in rows:
                if self._drawn:
                    reseed(row)
                items.append(get(row))
        finally:
            moved = _restore(states)
        if moved <= self._drawn:
            return items
        self._drawn |= moved
        return self.read(get, rows, step)
