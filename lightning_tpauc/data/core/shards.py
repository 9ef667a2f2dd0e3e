"""The contiguous slice of a batch that each rank takes."""

from __future__ import annotations

from typing import NamedTuple

from lightning_tpauc.distributed import gather_objects, rank, world_size

__all__ = ("World", "current_world", "least_of_ranks", "share_of", "slice_of")


class World(NamedTuple):
    """Position of this process among the processes of a run.

    Attributes:
        rank: in ``0 .. size - 1``.
        size: number of processes, W.
    """

    rank: int
    size: int


def current_world() -> World:
    """Rank and number of processes, ``World(0, 1)`` without a process group.

    Call it when an iteration starts, never when an object is built: most samplers are built before the group exists.

    Example:
        >>> current_world()
        World(rank=0, size=1)
    """
    return World(rank(), world_size())


def least_of_ranks(value: int) -> int:
    """The smallest value of all ranks; a collective where there are several.

    Example:
        >>> least_of_ranks(3)
        3
    """
    return min(int(own) for own in gather_objects(value))


def share_of(total: int, world: World) -> int:
    """Size of a rank's slice: ``total // W``, plus one on the first ``total % W`` ranks.

    Example:
        >>> [share_of(7, World(rank, 3)) for rank in range(3)]
        [3, 2, 2]
    """
    return total // world.size + (world.rank < total % world.size)


def slice_of(total: int, world: World) -> slice:
    """The rank's contiguous slice of ``total`` items; the slices of all ranks partition ``range(total)``.

    Example:
        >>> slice_of(7, World(1, 3))
        slice(3, 5, None)
    """
    start = world.rank * (total // world.size) + min(world.rank, total % world.size)
    return slice(start, start + share_of(total, world))
