"""Tables as text, Markdown and CSV."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from typing import Any

__all__ = ("as_csv", "as_markdown", "as_text", "mean_and_std")


def as_text(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns: the first one to the left, the others to the right.

    Example:
        >>> print(as_text(["method", "area"], [["A", "0.5"], ["BB", "0.25"]]))
        method  area
        A        0.5
        BB      0.25
    """
    lines = [header, *rows]
    widths = [max(len(line[k]) for line in lines) for k in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if k == 0 else cell.rjust(w) for k, (cell, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def as_markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown.

    Example:
        >>> print(as_markdown(["method", "area"], [["A", "0.5"]]))
        | method | area |
        |---|---|
        | A | 0.5 |
    """
    return "\n".join([_line(header), f"|{'---|' * len(header)}", *map(_line, rows)])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def as_csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """CSV with a header; numbers have five decimals, ``None`` is empty.

    Example:
        >>> as_csv(["method", "area"], [["A", 0.5], ["B", None]]).splitlines()
        ['method,area', 'A,0.50000', 'B,']
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([[f"{cell:.5f}" if isinstance(cell, float) else cell for cell in row] for row in rows])
    return file.getvalue()


def mean_and_std(values: Sequence[float]) -> str:
    """The mean, and of several values the sample standard deviation.

    Example:
        >>> mean_and_std([0.5]), mean_and_std([0.25, 0.75])
        ('0.500', '0.500 (0.354)')
    """
    mean = f"{statistics.fmean(values):.3f}"
    return mean if len(values) < 2 else f"{mean} ({statistics.stdev(values):.3f})"
