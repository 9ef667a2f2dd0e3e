"""Runs what is missing, with a bar that says how much is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tqdm import tqdm

from lightning_tpauc.comparison.store import Keyed, Store

__all__ = ("missing_bar",)

Cell = TypeVar("Cell", bound=Keyed)


def missing_bar(
    cells: Sequence[Cell], store: Store[Any], title: str, **bar: Any
) -> tuple[list[Cell], Callable[[], tqdm[Any]]]:
    """The cells that the store lacks, and what makes a bar that counts all of them.

    Args:
        cells: all that are wanted.
        store: what has finished.
        title: what the bar is called.
        **bar: further arguments of the bar.
    """
    missing = [cell for cell in cells if store.get(cell) is None]
    # cells take seconds to hours: the speed is measured over all of them
    return missing, lambda: tqdm(desc=title, initial=len(cells) - len(missing), total=len(cells), smoothing=0, **bar)
