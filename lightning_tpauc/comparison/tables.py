"""Tables as text, CSV and Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any


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


def as_markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""A table of Markdown: the first column to the left, the others to the right.

    Example:
        >>> print(as_markdown(["label", "area"], [["a|b", "0.5"]]), end="")
        | label | area |
        |---|---:|
        | a\|b | 0.5 |
    """
    lines = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in (header, *rows)]
    shown = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([shown[0], f"|---{'|---:' * (len(header) - 1)}|", *shown[1:]]) + "\n"
