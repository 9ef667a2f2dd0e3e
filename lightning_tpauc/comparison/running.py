"""What is left to run, and a bar that shows it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from tqdm import tqdm

from lightning_tpauc.comparison.store import Keyed, Store

__all__ = ("missing_cells", "progress_bar")

Cell = TypeVar("Cell", bound=Keyed)


def missing_cells(cells: Iterable[Cell], store: Store[Any]) -> list[Cell]:
    """The cells that the store lacks."""
    return [cell for cell in cells if store.get(cell) is None]


def progress_bar(title: str, done: int, total: int, **options: Any) -> tqdm[Any]:
    """A bar that says how long the rest will take, by the speed of all that has been done in this run.

    Cells take seconds to hours, so the speed of the last ones says little.

    Args:
        title: what the bar is called.
        done: how many of them an earlier run has done.
        total: how many there are in all.
        **options: further arguments of the bar.
    """
    return tqdm(desc=title, initial=done, total=total, smoothing=0, **options)
